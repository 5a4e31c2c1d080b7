"""Envoy's configuration as values: listeners, routes, clusters, filters. No I/O."""
