"""Builds the submitted files: the pipeline, and the package with its attempts and their targets."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from sluice.audit.insider.payload import TARGETS, World, encode

PACKAGE = "sluice_insider"
SUFFIXES = frozenset({".py", ".java"})
_HERE = Path(__file__).parent
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Packed:
    """The submitted files.

    Attributes:
        pipeline: the main file.
        package: a zip file for Python's path.
        victim: the pipeline of the other job.
    """

    pipeline: Path
    package: Path
    victim: Path


def packed(world: World, directory: Path) -> Packed:
    """Pack the attempts, and their knowledge of the ``world``, into ``directory``."""
    package = directory / f"{PACKAGE}.zip"
    payload = _HERE / "payload"
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(each for each in payload.rglob("*") if each.suffix in SUFFIXES):
            name = f"{PACKAGE}/{module.relative_to(payload)}"
            archive.writestr(zipfile.ZipInfo(name, _FIXED_TIME), module.read_bytes())
        archive.writestr(zipfile.ZipInfo(f"{PACKAGE}/{TARGETS}", _FIXED_TIME), encode(world))
    return Packed(_HERE / "pipeline.py", package, _HERE / "victim.py")
