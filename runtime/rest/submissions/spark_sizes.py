"""Parses memory sizes in the notation of Spark's settings. No I/O."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,12})(?:([kmgt])b?)?")
_IN_KIB = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}
MAX_MEBIBYTES = 1 << 31


def mebibytes(text: str) -> int:
    """``4g``, ``512m``, ``524288k`` or ``512`` (MiB) in MiB, as Spark reads them; raises :class:`ValueError`.

    Source: Spark's configuration, "Spark Properties", sizes in bytes.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a memory size")
    number, unit = found.groups()
    size = int(number) * _IN_KIB[unit or "m"] >> 10
    if not 0 < size < MAX_MEBIBYTES:
        raise ValueError(f"{text[:40]!r} is out of range for a memory size")
    return size
