"""What one process of a job sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECRETS_DIRECTORY = "/run/secrets"
"""Where secrets are in a box, one file each; it is there only when there are any."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A small file in memory, below :data:`SECRETS_DIRECTORY` of one box; its representation says nothing of it."""

    name: str
    content: bytes = field(repr=False)


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
    secrets: tuple[SecretFile, ...] = ()
    """Files that are in the box's memory alone: read-only, and nowhere on disk. Only a sandbox can have them."""
    shown_elsewhere: Mapping[Path, Path] = field(default_factory=dict)
    """Directories that the process has at other paths than they are, read-only: those by these."""
    home: Path | None = None
    """``HOME`` in the box's passwd file; None: the first writable path, else ``/tmp``."""
    shared: tuple[Path, ...] = ()
    """Directories that processes with other networks may write as well. A process with a network of its own makes no
    socket there: over it connections could leave their network."""
