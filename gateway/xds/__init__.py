"""Envoy driven by our own xDS server: what it serves, whom it admits, whom it sends where."""
