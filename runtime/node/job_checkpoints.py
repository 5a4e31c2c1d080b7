"""The directory of a job's streaming checkpoints: the only directory outside of their own that its processes use."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from sluice.core import make_private_directory
from sluice.runtime.sandbox import Sandbox, SandboxRefused


def checkpoint_directory(url: str) -> Path | None:
    """The directory of a ``file`` URL; None for any other ``url`` and for an empty one."""
    parts = urlsplit(url)
    return Path(parts.path) if url and parts.scheme == "file" else None


def own_checkpoints(url: str, sandbox: Sandbox, job_id: str) -> tuple[Path, ...]:
    """Create the checkpoint directory that a process of the job must be able to write, and make the job its owner.

    Args:
        url: URL of the job's checkpoints, empty for none; only a ``file`` URL names a directory.
        sandbox: knows the job's uid.
        job_id: ID of the job, and the last segment of ``url``.

    Returns:
        The directory; empty when ``url`` names none.

    Raises:
        SandboxRefused: ``url`` is not a directory of this job.
        StoreError: the directory cannot be created.
    """
    directory = checkpoint_directory(url)
    if directory is None:
        return ()
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not directory.is_absolute() or directory.name != job_id:
        raise SandboxRefused(f"{url[:200]} is not a checkpoint directory of job {job_id}")
    uid = sandbox.uid(job_id)
    make_private_directory(directory.parent)
    if directory.is_symlink():
        raise SandboxRefused(f"{directory} is a symbolic link", "give the job the directory itself")
    directory.mkdir(mode=0o700, exist_ok=True)
    if uid is not None and directory.lstat().st_uid != uid:  # new, or copied from a savepoint
        sandbox.own([directory], job_id)
    return (directory,)
