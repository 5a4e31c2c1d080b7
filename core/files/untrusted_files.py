"""Access to files in directories that somebody less trusted can write: the working directories of jobs.

Whoever may write a directory can put anything in the place of a file that others expect there: a FIFO that keeps the
reader waiting, a link to a file of the reader's, a device, a tree too deep to walk. So every process that looks into
such a directory from outside does it with these functions. They begin at a ``root`` that the job cannot replace, open
each directory below it by its descriptor, follow no symbolic link, wait for nothing, and check what they have opened.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sluice.core.errors import StoreError

MAX_ENTRIES = 100_000
"""Most entries of one directory that are listed."""

MAX_DEPTH = 64
"""Deepest nesting of directories that is walked."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_WHAT_IT_SHOULD_BE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR, errno.ENODEV})
_OWNER_MAY_ALL = 0o700


class UnsafeFile(StoreError):
    """Something else lies where a regular file or a directory of the job is expected."""


def open_untrusted(root: Path, *names: str, writable: bool = False) -> IO[bytes]:
    """Open the regular file ``names`` below ``root``, for reading or, with ``writable``, for changes in place.

    Raises:
        FileNotFoundError: there is none.
        UnsafeFile: it is not a regular file, a link leads to it, it has a second name, or it belongs to somebody else.
    """
    with _directory(root, names[:-1]) as (directory, owners), _explained(root, names):
        access = os.O_RDWR if writable else os.O_RDONLY
        return _checked(os.open(names[-1], access | _FILE, dir_fd=directory), owners, "r+b" if writable else "rb")


@contextlib.contextmanager
def untrusted_socket(root: Path, name: str) -> Iterator[Path]:
    """A path to connect to the unix socket ``name`` in ``root``, even if something else takes its place.

    Raises:
        FileNotFoundError: there is none.
        UnsafeFile: it is not a socket, a link leads to it, it has a second name, or it belongs to somebody else.
    """
    with _directory(root, ()) as (directory, owners), _explained(root, (name,)):
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            _check(os.fstat(handle), owners, stat.S_IFSOCK)
        except BaseException:
            os.close(handle)
            raise
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def create_untrusted(root: Path, name: str, *, mode: int) -> IO[bytes]:
    """Open ``name`` in ``root`` for appending, and create it with ``mode`` if it is missing.

    Raises:
        UnsafeFile: as in :func:`open_untrusted`.
    """
    with _directory(root, ()) as (directory, owners), _explained(root, (name,)):
        access = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = _checked(os.open(name, access | _FILE, mode, dir_fd=directory), owners, "ab")
    os.set_blocking(file.fileno(), True)  # a child that inherits it expects that
    return file


def read_untrusted(root: Path, *names: str, limit: int) -> bytes:
    """Read the file ``names`` below ``root``.

    Raises:
        FileNotFoundError: there is none.
        UnsafeFile: as in :func:`open_untrusted`, or it is larger than ``limit`` bytes.
    """
    with open_untrusted(root, *names) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnsafeFile(f"{root.joinpath(*names)} is larger than {limit} bytes")
    return data


def is_regular_file(root: Path, *names: str) -> bool:
    """Whether there is a file that :func:`open_untrusted` would open."""
    try:
        open_untrusted(root, *names).close()
    except (OSError, UnsafeFile):
        return False
    return True


def remove_untrusted(root: Path, *names: str) -> None:
    """Remove the file or directory tree ``names`` below ``root``; links are removed, not followed.

    What cannot be removed, or is not there, stays as it is. Needs three descriptors however deep the tree is.
    """
    with contextlib.suppress(OSError, UnsafeFile), _directory(root, names[:-1]) as (directory, _):
        _remove(directory, names[-1])


def clear_untrusted(root: Path, *, keep: Container[str]) -> None:
    """Remove everything in ``root`` except ``keep``, as :func:`remove_untrusted` does."""
    with contextlib.suppress(FileNotFoundError), _directory(root, ()) as (directory, _):
        for name in _entries(directory):
            if name not in keep:
                _remove(directory, name)


def list_untrusted(root: Path, *names: str) -> list[str]:
    """What is in the directory ``names`` below ``root``, sorted; nothing when there is no such directory.

    Raises:
        UnsafeFile: it is no directory, or holds more than :data:`MAX_ENTRIES` entries.
    """
    try:
        with _directory(root, names) as (directory, _):
            found = _entries(directory, MAX_ENTRIES + 1)
    except FileNotFoundError:
        return []
    if len(found) > MAX_ENTRIES:
        raise UnsafeFile(f"{root.joinpath(*names)} holds more than {MAX_ENTRIES} entries")
    return sorted(found)


def walk_untrusted(root: Path, *names: str) -> list[str]:
    """All regular files below the directory ``names`` of ``root``, relative to it; no links or other kinds of files.

    Raises:
        UnsafeFile: there are more than :data:`MAX_ENTRIES` entries, or more than :data:`MAX_DEPTH` nested directories.
    """
    found: list[str] = []
    waiting: list[tuple[str, ...]] = [()]
    seen = 0
    while waiting:
        below = waiting.pop()
        try:
            with _directory(root, (*names, *below)) as (directory, _), os.scandir(directory) as entries:
                listed = [
                    (each.name, each.is_dir(follow_symlinks=False), each.is_file(follow_symlinks=False))
                    for each in itertools.islice(entries, MAX_ENTRIES + 1 - seen)
                ]
        except FileNotFoundError:
            continue  # it has gone meanwhile
        seen += len(listed)
        if seen > MAX_ENTRIES or len(below) > MAX_DEPTH:
            raise UnsafeFile(f"{root.joinpath(*names)} holds more than {MAX_ENTRIES} entries, or too deep ones")
        waiting += [(*below, name) for name, is_directory, _ in listed if is_directory]
        found += ["/".join((*below, name)) for name, _, is_file in listed if is_file]
    return sorted(found)


@contextlib.contextmanager
def _directory(root: Path, names: tuple[str, ...]) -> Iterator[tuple[int, Container[int]]]:
    """A descriptor of the directory ``names`` below ``root``, and who may own files there: besides this process the
    owners of ``root`` and of the first directory in it, which was given to a job by whoever owns ``root``."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owners = {os.geteuid(), os.fstat(descriptor).st_uid}
        for count, name in enumerate(names, 1):
            with _explained(root, names[:count]):
                below = os.open(name, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
            if count == 1:
                owners.add(os.fstat(descriptor).st_uid)
        yield descriptor, owners
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(root: Path, names: tuple[str, ...]) -> Iterator[None]:
    """Turn errors of the system about an unexpected file into :class:`UnsafeFile`."""
    if any(not name or "/" in name or name in {".", ".."} for name in names):
        raise ValueError(f"{names!r} are not plain names")
    try:
        yield
    except UnsafeFile as error:
        raise UnsafeFile(f"{root.joinpath(*names)} {error}", "a job has put it there; nothing was read") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _NOT_WHAT_IT_SHOULD_BE:
            raise UnsafeFile(
                f"{root.joinpath(*names)} is a link, or not the kind of file it should be",
                "a job has put it there; nothing was read",
            ) from error
        raise UnsafeFile(f"cannot open {root.joinpath(*names)}: {error.strerror or error}") from error


def _checked(descriptor: int, owners: Container[int], mode: str) -> IO[bytes]:
    """Check the file behind ``descriptor``, and close it when it is not what it should be."""
    try:
        _check(os.fstat(descriptor), owners)
        return os.fdopen(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


def _check(info: os.stat_result, owners: Container[int], kind: int = stat.S_IFREG) -> None:
    if stat.S_IFMT(info.st_mode) != kind:
        raise UnsafeFile("is not a socket" if kind == stat.S_IFSOCK else "is not a regular file")
    if info.st_nlink > 1:
        raise UnsafeFile("has a second name, which may be another's file")
    if info.st_uid not in owners:
        raise UnsafeFile(f"belongs to user id {info.st_uid}")


@dataclass(frozen=True, slots=True)
class _Level:
    """A directory on the way down: its name, the identity of the one above it, and what remains to be removed here."""

    name: str
    above: tuple[int, int]
    directories: list[str]


def _remove(directory: int, name: str) -> None:
    if not _is_directory(directory, name):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        return
    descriptor = _opened(directory, name)
    if descriptor is not None:
        _empty(descriptor)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=directory)


def _empty(current: int) -> None:
    """Remove all that is below the directory ``current``, and close it.

    Goes up by ``..``, and only if that leads to the directory it came from: a process that still runs there may move
    directories. Skips what cannot be removed.
    """
    way = [_Level("", (0, 0), _without_files(current))]
    try:
        while True:
            here = way[-1]
            if here.directories:
                name = here.directories.pop()
                below = _opened(current, name)
                if below is not None:
                    way.append(_Level(name, _identity(current), _without_files(below)))
                    os.close(current)
                    current = below
                continue
            way.pop()
            if not way:
                return
            above = os.open("..", _DIRECTORY, dir_fd=current)
            os.close(current)
            current = above
            if _identity(above) != here.above:
                return
            with contextlib.suppress(OSError):
                os.rmdir(here.name, dir_fd=above)
    except OSError:
        return
    finally:
        os.close(current)


def _without_files(directory: int) -> list[str]:
    """Unlink everything in ``directory`` but directories; returns their names."""
    directories = []
    for name in _entries(directory):
        if _is_directory(directory, name):
            directories.append(name)
        else:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
    return directories


def _entries(directory: int, limit: int | None = None) -> list[str]:
    with os.scandir(directory) as found:
        return [each.name for each in itertools.islice(found, limit)]


def _is_directory(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _identity(descriptor: int) -> tuple[int, int]:
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino


def _opened(parent: int, name: str) -> int | None:
    """A descriptor of a directory to remove, made readable and writable for its owner; None if missing."""
    with contextlib.suppress(OSError):
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            if os.fstat(handle).st_mode & _OWNER_MAY_ALL != _OWNER_MAY_ALL:
                Path(f"/proc/self/fd/{handle}").chmod(_OWNER_MAY_ALL)
            return os.open(".", _DIRECTORY, dir_fd=handle)
        finally:
            os.close(handle)
    return None
