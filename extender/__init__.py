"""The service that kube-scheduler calls: filter, prioritize and bind over fractions of GPUs."""
