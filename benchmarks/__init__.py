"""Measurements, each beside a named peer in the same run. Run one: python -m benchmarks.NAME [--quick] [--json]."""
