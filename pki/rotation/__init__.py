"""Rotating authorities of a running cluster, phase by phase."""
