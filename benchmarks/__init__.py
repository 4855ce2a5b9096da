"""Offline and measuring: traces replayed through the very functions that the service calls."""
