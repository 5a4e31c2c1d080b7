"""Benchmarks, each compared with a named peer in the same run. Run: python -m benchmarks.NAME [--quick] [--json]."""
