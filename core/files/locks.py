"""Locks of files and directories (flock(2)). The kernel releases them when their process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sluice.core.errors import StoreError
from sluice.core.files.trusted_files import SECRET_MODE, opened_directory

LOCK_PATIENCE_SECONDS = 5.0
"""How long to wait for the lock of a directory that a job or a stopped process may hold."""

_LOCK_POLL_SECONDS = 0.02


class LockHeld(StoreError):
    """Somebody else does not release a lock."""


@contextlib.contextmanager
def locked(directory: Path, *, patience: float | None = None) -> Iterator[None]:
    """Hold the writers' lock of ``directory`` (flock(2) on the directory itself; gone when the process ends).

    If somebody else holds it for more than ``patience`` seconds, this raises :class:`LockHeld`: a job can lock any
    directory that it can open.
    """
    with opened_directory(directory, f"cannot open {directory}", follow=True) as descriptor:
        if patience is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        elif not lock_within(descriptor, patience):
            raise LockHeld(f"another process holds the lock of {directory}", "end the process that does")
        yield


def lock_within(
    descriptor: int, patience: float, *, kind: int = fcntl.LOCK_EX, poll_seconds: float = _LOCK_POLL_SECONDS
) -> bool:
    """Lock an open file (flock(2)) as ``kind`` says; return whether that succeeded within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(poll_seconds)
        else:
            return True


@contextlib.contextmanager
def held_alone(path: Path) -> Iterator[bool]:
    """Lock the file ``path``, created if missing; yields False when somebody else has it locked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, SECRET_MODE)
    except OSError as error:
        raise StoreError(f"cannot lock {path}: {error.strerror or error}", "check space and permissions") from error
    try:
        yield lock_within(descriptor, 0)
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether somebody has locked ``path``, a file or directory; False if it is missing or cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lock_within(descriptor, 0, kind=fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold a lock on the existing file at ``path``, which the holder of the lock may replace.

    A waiter that finds the file replaced then waits for the new one.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(path, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
