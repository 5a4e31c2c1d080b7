"""The paths and secrets that one process of a job sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECRETS_DIRECTORY = "/run/secrets"
"""The directory of secrets in a box, one file each. It exists only if there are secrets."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A small file in memory, below :data:`SECRETS_DIRECTORY` of one box. Its ``repr`` omits the content."""

    name: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class View:
    """The paths that a process of a job sees, in addition to the system and Python. They are the same in the box.

    All paths are absolute. A path below a writable path must be writable too, because the job could replace it by a
    link.
    """

    job_id: str
    read_only: tuple[Path, ...] = ()
    """Directories or files. If root starts the box, every user must be able to read them: the job has its own uid."""
    writable: tuple[Path, ...] = ()
    """Directories. :meth:`Sandbox.own` changes their owner to the job's uid."""
    identity: Path | None = None
    """The directory with key and certificate, read-only. Files renamed into it from outside appear in the box."""
    secrets: tuple[SecretFile, ...] = ()
    """Read-only files that exist only in the box's memory, never on disk. They require namespaces."""
    read_only_remapped: Mapping[Path, Path] = field(default_factory=dict)
    """Read-only directories that have another path in the box: the source by the path in the box."""
    home: Path | None = None
    """The home directory in the box's passwd file; None: the first writable path, or ``/tmp``."""
    shared: tuple[Path, ...] = ()
    """Directories that processes in other networks may write too. A process in a private network must not create
    sockets there, because connections could leave the network over them."""
