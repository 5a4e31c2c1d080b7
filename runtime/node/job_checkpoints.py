"""The directory of a job's streaming checkpoints, as its processes see it: the one place outside of their own."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from sluice.core import make_private_directory
from sluice.runtime.sandbox import Sandbox, SandboxRefused


def checkpoint_directory(url: str) -> Path | None:
    """The directory that ``url`` names; None: it names none, or there is none."""
    parts = urlsplit(url)
    return Path(parts.path) if url and parts.scheme == "file" else None


def own_checkpoints(url: str, sandbox: Sandbox, job_id: str) -> tuple[Path, ...]:
    """What a process of the job must be able to write for its checkpoints; made, and the job's, when this returns.

    Args:
        url: where the job keeps them, empty for none; only a ``file`` URL names a directory.
        job_id: whose they are, and the last name in ``url``.

    Raises:
        SandboxRefused: it is no directory of this job's.
        StoreError: it cannot be made.
    """
    directory = checkpoint_directory(url)
    if directory is None:
        return ()
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not directory.is_absolute() or directory.name != job_id:
        raise SandboxRefused(f"{url[:200]} is no directory for checkpoints of job {job_id}")
    uid = sandbox.uid(job_id)
    make_private_directory(directory.parent)
    if directory.is_symlink():
        raise SandboxRefused(f"{directory} is a link: it is not given to a job", "name the directory itself")
    directory.mkdir(mode=0o700, exist_ok=True)
    if uid is not None and directory.lstat().st_uid != uid:  # new, or copied from a savepoint; then only the job writes
        sandbox.own([directory], job_id)
    return (directory,)
