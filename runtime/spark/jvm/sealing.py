"""Whether a job seals its shuffles: without instructions of the CPU, AES costs more than the rest of a shuffle."""

from __future__ import annotations

from pathlib import Path

from sluice.runtime.messages import Seal

CPUINFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = ({"aes", "pclmulqdq"}, {"aes", "pmull"})
"""Those that AES-GCM needs, on x86 and on ARM."""


def seals(seal: Seal, cpuinfo: Path = CPUINFO) -> bool:
    """What ``seal`` means on this machine; a CPU of which nothing is known has no instructions for AES."""
    if seal != "auto":
        return seal
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return False
    found = [set(line.partition(":")[2].split()) for line in lines if line.lower().startswith(("flags", "features"))]
    return bool(found) and all(any(needed <= flags for needed in _INSTRUCTIONS) for flags in found)
