"""Assigns each job its own uid, and changes the owner of files to it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from sluice.core import SECRET_MODE, staged_name
from sluice.runtime.sandbox.errors import SandboxRefused

FIRST_UID = 0x70000000
"""Above the range that systemd assigns to containers (https://systemd.io/UIDS-GIDS/), below 2^31."""
UID_BITS = 27
_PASS = stat.S_IXGRP | stat.S_IXOTH


def job_uid(job_id: str) -> int:
    """The uid and gid of a job: a hash of its id, so every machine computes the same one."""
    digest = hashlib.sha256(job_id.encode()).digest()
    return FIRST_UID + (int.from_bytes(digest[:8], "big") >> (64 - UID_BITS))


def is_job_uid(uid: int) -> bool:
    """Whether ``uid`` is in the range of :func:`job_uid`."""
    return FIRST_UID <= uid < FIRST_UID + (1 << UID_BITS)


def change_owner(path: Path, uid: int) -> None:
    """Change the owner of ``path`` and everything below it to ``uid``. Follows no links.

    Raises:
        SandboxRefused: the path is a link, or contains a device or a file with several hard links, one of which could
            be anywhere.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            os.chown(path, uid, uid, follow_symlinks=False)
            return
        raise SandboxRefused(f"{path} cannot be given to a job: {error.strerror}") from error
    try:
        if not stat.S_ISDIR(os.fstat(top).st_mode):
            _change_owner_of_file(top, path, uid)
            return
        # The top comes last: its owner shows that everything below has been changed, even after a kill in between.
        for where, _, names, fd in os.fwalk(".", topdown=False, dir_fd=top, follow_symlinks=False):
            for name in names:
                _change_owner_of_entry(fd, path / where / name, uid)
            os.fchown(fd, uid, uid)
    finally:
        os.close(top)


def write_for(uid: int | None, path: Path, data: bytes) -> None:
    """Atomically replace ``path`` by a secret file with the owner ``uid``; None: this user."""
    staged = path.with_name(staged_name(path.name))
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, SECRET_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if uid is not None:
                os.fchown(file.fileno(), uid, uid)
        staged.rename(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def allow_traversal(path: Path) -> None:
    """Let other users traverse this user's directories above ``path``. They still cannot list them."""
    for directory in path.absolute().parents:
        info = directory.lstat()
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and mode & _PASS != _PASS:
            directory.chmod(mode | _PASS)


def _change_owner_of_entry(directory: int, path: Path, uid: int) -> None:
    """Change the owner of what ``path`` is now, by descriptor, so that a replacement is not affected."""
    fd = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        info = os.fstat(fd)
        if stat.S_ISBLK(info.st_mode) or stat.S_ISCHR(info.st_mode):
            raise SandboxRefused(f"{path} is a device and cannot be given to a job")
        if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
            raise SandboxRefused(f"{path} has several hard links and cannot be given to a job")
        os.chown(f"/proc/self/fd/{fd}", uid, uid)  # changes the link, socket or FIFO itself
    finally:
        os.close(fd)


def _change_owner_of_file(fd: int, path: Path, uid: int) -> None:
    info = os.fstat(fd)
    if info.st_uid == uid and is_job_uid(uid):
        return  # the job already owns it
    if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
        raise SandboxRefused(f"{path} has several hard links or is not a regular file: it cannot be given to a job")
    os.fchown(fd, uid, uid)
