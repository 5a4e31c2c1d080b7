"""A module that a pipeline of the tests brings along."""

from __future__ import annotations


def double(number: int) -> int:
    return 2 * number
