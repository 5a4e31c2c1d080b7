"""Decides whether a job seals its shuffles: without CPU instructions, AES costs more than the rest of a shuffle."""

from __future__ import annotations

from pathlib import Path

from sluice.runtime.messages import Seal

CPUINFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = ({"aes", "pclmulqdq"}, {"aes", "pmull"})
"""The CPU flags for fast AES-GCM, on x86 and on ARM."""


def seals(seal: Seal, cpuinfo: Path = CPUINFO) -> bool:
    """Resolve ``seal`` on this machine. ``auto`` means True if the CPU is known to have AES instructions."""
    if seal != "auto":
        return seal
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return False
    found = [set(line.partition(":")[2].split()) for line in lines if line.lower().startswith(("flags", "features"))]
    return bool(found) and all(any(needed <= flags for needed in _INSTRUCTIONS) for flags in found)
