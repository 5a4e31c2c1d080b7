"""The cache of code that Spark's JVMs load: the compiled plugin, and archives of classes.

What is in it runs in every JVM of every later cluster of this user, beside private keys. A name proves nothing, so a
file is used only when

1. it and its directory belong to this user or to the superuser, and nobody else may write them;
2. nobody else can put another directory in the place of that one, nor of any above it;
3. its content has the digest that was written down, under the same conditions, when it was made.

Whoever may write as this user is outside of what a cache can defend against.
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
"""User ids that code may belong to, besides the own one: images of containers are built by the superuser."""
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _Checksum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a file; written after it, so that there is no file in use without it."""

    sha256: str
    size: int


def cache_directory() -> Path:
    """The default place: ``$XDG_CACHE_HOME/sluice``, otherwise ``~/.cache/sluice``."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    return base / "sluice"


def checksum_file(file: Path) -> Path:
    """The path of the file with size and digest of ``file``."""
    return file.with_suffix(".json")


def prepare_directory(directory: Path) -> Path:
    """Create ``directory`` for this user alone.

    Raises:
        StoreError: others can write to it, or replace it or a directory above it. It is not repaired: its content
            may be theirs already.
    """
    if directory.exists() and (reason := _others_may_replace(directory)):
        raise StoreError(reason, "remove what others may write, or set XDG_CACHE_HOME to a directory of your own")
    make_private_directory(directory)
    if reason := _others_may_replace(directory):
        raise StoreError(reason, "deny others to write there, or set XDG_CACHE_HOME to a directory of your own")
    return directory


def write_checksum(file: Path) -> None:
    """Write down the digest of ``file``, which this process has just made."""
    note = _Checksum(sha256=_digest(file), size=file.stat().st_size)
    write_public(checksum_file(file), msgspec.json.encode(note))


def why_unusable(file: Path) -> str:
    """Why ``file`` must not be loaded, as a clause for a message; empty when it is what :func:`write_checksum` saw."""
    if reason := _others_may_replace(file.parent) or _others_may_write(file) or _others_may_write(checksum_file(file)):
        return reason
    try:
        note = msgspec.json.decode(read_bounded(checksum_file(file), MAX_CHECKSUM_BYTES), type=_Checksum)
    except (SluiceError, msgspec.DecodeError) as error:
        return f"its digest cannot be read: {error}"
    if file.stat().st_size != note.size or note.size > MAX_CODE_BYTES:
        return f"it is not the file of {note.size} bytes that was made"
    return "" if _digest(file) == note.sha256 else "its content is not what was made"


def is_usable(file: Path, consequence: str) -> bool:
    """Whether ``file`` was made and may be loaded; if it may not, the log says ``consequence`` and why."""
    if not file.exists():
        return False
    reason = why_unusable(file)
    if reason:
        _LOG.warning("%s: %s", consequence, reason)
    return not reason


def make_once(file: Path, make: Callable[[], None], *, lock: str, consequence: str) -> None:
    """Have ``make`` write ``file`` unless a usable one is there; of several processes one does, the others wait.

    Args:
        file: in the cache.
        make: puts a complete file there, in one step.
        lock: name of the lock's file.
        consequence: what follows from a file that is there and must not be used, for the log.

    Raises:
        StoreError: the directory is not this user's alone, or cannot be written.
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
    """Hold the lock ``lock``: of several processes that would make the same file, one does, and the others wait.

    Raises:
        StoreError: the lock's file cannot be written.
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
    """Why ``directory`` may not be the one that its owner made; as OpenSSH's StrictModes judges the way to keys."""
    try:
        absolute, resolved = directory.absolute(), directory.resolve(strict=True)
        info = resolved.stat()
        if reason := _belongs_to_others(resolved, info):
            return reason
        if info.st_mode & _OTHERS_MAY_WRITE:
            return f"others may have written what is in {directory}"
        # Links on the way count as well: whoever owns one says where it leads.
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
