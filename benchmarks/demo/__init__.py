"""`make demo`: the extender on the example cluster, driven over HTTP by a mixed batch of pods."""
