"""A module that is submitted together with a test pipeline."""

from __future__ import annotations


def double(number: int) -> int:
    return 2 * number
