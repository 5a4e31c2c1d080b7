"""What one process of a job sees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class View:
    """Paths that a process of a job has, the same inside as outside; besides them it sees the system and Python.

    Every path is absolute. Nothing may be below a writable path that is not writable itself: the job could put a link
    in its place.
    """

    job_id: str
    read_only: tuple[Path, ...] = ()
    """Directories or files. As root they must be readable for every user: the job has a uid of its own."""
    writable: tuple[Path, ...] = ()
    """Directories. :meth:`Sandbox.own` gives them to the job's uid."""
    identity: Path | None = None
    """The directory with key and certificate, read-only; what is renamed into it from outside is seen inside."""
    home: Path | None = None
    """``HOME`` in the box's passwd file; None: the first writable path, else ``/tmp``."""
