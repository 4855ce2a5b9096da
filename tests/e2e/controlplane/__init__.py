"""A real Kubernetes control plane on loopback, for the end-to-end tests.

The extender is only as good as its talk with the real kube-scheduler and the
real kube-apiserver, so nothing is imitated here but the kubelet.
`binaries` finds or builds the programs, `cluster` runs them.
"""
