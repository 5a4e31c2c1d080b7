"""A folder through which a test and its jobs exchange files."""

from __future__ import annotations

from pathlib import Path


def shared_folder(parent: Path, name: str = "shared") -> Path:
    """Create the folder ``name`` in ``parent``, writable for all jobs. ``[isolation] writable`` must include it."""
    path = parent / name
    path.mkdir(exist_ok=True)
    path.chmod(0o777)  # each job has its own uid
    return path
