"""Tests of the distributions, and of the program installed from one outside this tree.

Run them with `make test-wheel`.
"""
