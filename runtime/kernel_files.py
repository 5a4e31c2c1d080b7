"""Reads small text files of the kernel in ``/proc`` and ``/sys``."""

from __future__ import annotations

from pathlib import Path

MAX_KERNEL_FILE_BYTES = 1 << 20


def kernel_text(path: Path) -> str:
    """Return the start of a file, with invalid UTF-8 replaced; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_KERNEL_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def kernel_count(path: Path, name: str) -> int:
    """Return the number in the line ``name NUMBER`` of a file; 0 when there is no such line."""
    for line in kernel_text(path).splitlines():
        key, _, number = line.partition(" ")
        if key == name and number.isdecimal():
            return int(number)
    return 0
