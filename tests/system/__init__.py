"""Whole systems with real programs: slower than the default suite, run by ``make test-system``."""
