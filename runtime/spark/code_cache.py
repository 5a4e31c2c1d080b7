"""The cache of code that Spark's JVMs load: the compiled plugin, and class archives.

Code from the cache runs in every JVM of every later cluster of this user, next to private keys. A file name proves
nothing, so a file is used only if

1. this user or the superuser owns it and its directory, and no other user may write to them;
2. no other user can replace its directory or any parent directory;
3. its content matches the digest that was recorded, under the same conditions, when the file was created.

The cache cannot defend against a process that runs as this user.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sluice.core import SluiceError, StoreError, make_private_directory, read_bounded, write_public

_LOG = logging.getLogger(__name__)

MAX_CODE_BYTES = 1 << 30
MAX_CHECKSUM_BYTES = 4096
TRUSTED_OWNERS = frozenset({0})
"""User ids that may own code besides this user: the superuser builds container images."""
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _Checksum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recorded digest and size of a file. It is written after the file, so a file without it is never used."""

    sha256: str
    size: int


def cache_directory() -> Path:
    """The default cache directory: ``$XDG_CACHE_HOME/sluice``, or ``~/.cache/sluice``."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    return base / "sluice"


def checksum_file(file: Path) -> Path:
    """The path of the file with the size and digest of ``file``."""
    return file.with_suffix(".json")


def prepare_directory(directory: Path) -> Path:
    """Create ``directory``, accessible only to this user.

    Raises:
        StoreError: other users can write to it, or replace it or a parent directory. An existing directory is not
            repaired, because its content may already come from others.
    """
    if directory.exists() and (reason := _others_may_replace(directory)):
        raise StoreError(reason, "remove what others may write, or set XDG_CACHE_HOME to a directory of your own")
    make_private_directory(directory)
    if reason := _others_may_replace(directory):
        raise StoreError(reason, "deny write access to others, or set XDG_CACHE_HOME to a directory of your own")
    return directory


def write_checksum(file: Path) -> None:
    """Record the digest of ``file``, which this process has just created."""
    note = _Checksum(sha256=_digest(file), size=file.stat().st_size)
    write_public(checksum_file(file), msgspec.json.encode(note))


def why_unusable(file: Path) -> str:
    """Why ``file`` must not be loaded, as a clause for a message; empty: it matches its recorded digest."""
    if reason := _others_may_replace(file.parent) or _others_may_write(file) or _others_may_write(checksum_file(file)):
        return reason
    try:
        note = msgspec.json.decode(read_bounded(checksum_file(file), MAX_CHECKSUM_BYTES), type=_Checksum)
    except (SluiceError, msgspec.DecodeError) as error:
        return f"its digest cannot be read: {error}"
    if file.stat().st_size != note.size or note.size > MAX_CODE_BYTES:
        return f"its size is not the recorded size of {note.size} bytes"
    return "" if _digest(file) == note.sha256 else "its content does not match the recorded digest"


def is_usable(file: Path, consequence: str) -> bool:
    """Whether ``file`` exists and may be loaded. If it must not be loaded, logs ``consequence`` and the reason."""
    if not file.exists():
        return False
    reason = why_unusable(file)
    if reason:
        _LOG.warning("%s: %s", consequence, reason)
    return not reason


def make_once(file: Path, make: Callable[[], None], *, lock: str, consequence: str) -> None:
    """Call ``make`` to create ``file`` unless a usable one exists. Only one process does so, the others wait.

    Args:
        file: a path in the cache.
        make: creates the complete file atomically.
        lock: name of the lock file.
        consequence: the log message if the existing file must not be used.

    Raises:
        StoreError: the directory is not private to this user, or not writable.
    """
    prepare_directory(file.parent)
    with exclusive_lock(file.parent / lock):
        if is_usable(file, consequence):
            return
        checksum_file(file).unlink(missing_ok=True)
        make()
        write_checksum(file)


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Hold the lock file ``lock``, so that only one of several processes creates a file while the others wait.

    Raises:
        StoreError: the lock file cannot be opened.
    """
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {lock}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _others_may_write(file: Path) -> str:
    try:
        info = file.lstat()
    except OSError as error:
        return f"{file}: {error.strerror or error}"
    if not stat.S_ISREG(info.st_mode):
        return f"{file} is not a regular file"
    return _belongs_to_others(file, info) or (f"others may write {file}" if info.st_mode & _OTHERS_MAY_WRITE else "")


def _others_may_replace(directory: Path) -> str:
    """Why others may write to ``directory`` or replace it, as in OpenSSH's StrictModes; empty: they cannot."""
    try:
        absolute, resolved = directory.absolute(), directory.resolve(strict=True)
        info = resolved.stat()
        if reason := _belongs_to_others(resolved, info):
            return reason
        if info.st_mode & _OTHERS_MAY_WRITE:
            return f"others may have written what is in {directory}"
        # Check links in the path as well, because their owner decides where they lead.
        for path in dict.fromkeys((absolute, *absolute.parents, *resolved.parents)):
            info = path.lstat()
            if reason := _belongs_to_others(path, info):
                return reason
            if stat.S_ISDIR(info.st_mode) and info.st_mode & _OTHERS_MAY_WRITE and not info.st_mode & stat.S_ISVTX:
                return f"others may replace what is in {path}"
    except OSError as error:
        return f"{directory}: {error.strerror or error}"
    return ""


def _belongs_to_others(path: Path, info: os.stat_result) -> str:
    return "" if info.st_uid in TRUSTED_OWNERS | {os.geteuid()} else f"{path} belongs to user id {info.st_uid}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
