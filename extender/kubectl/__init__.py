"""`kubectl tessera`: what an administrator asks. It reads, and writes nothing.

It speaks to the API server through `kubectl get --raw`, so it has kubectl's credentials, contexts and proxies and
needs none of its own; what only the extender knows it asks through the API server's proxy.
"""
