"""The live page: every card of the cluster as a cell, who is on it, who waits, and how fragmented the rest is.

Read-only, off by default, and served where the metrics are. Whoever looks costs the verbs next to nothing: what a
node looks like is kept as JSON and made anew only when the node changes, a few nodes at a time.
"""
