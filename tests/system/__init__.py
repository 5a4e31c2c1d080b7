"""Tests of whole systems with real programs, run by ``make test-system``.

They are slower than the default suite.
"""
