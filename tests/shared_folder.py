"""A folder by which a test and the jobs that it submits tell each other something."""

from __future__ import annotations

from pathlib import Path


def shared_folder(parent: Path, name: str = "shared") -> Path:
    """The folder ``name`` in ``parent``, which every job may write: for ``[isolation] writable``, or below that."""
    path = parent / name
    path.mkdir(exist_ok=True)
    path.chmod(0o777)  # jobs have uids of their own
    return path
