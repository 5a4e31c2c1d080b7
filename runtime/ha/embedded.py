"""Leader election among the JobManagers of one home, by a file lock that the kernel releases when its holder dies.

The leader holds the lock (flock(2) on a file of a local file system) for its whole term, and no other process can take
it from a live holder. A write under the lock therefore needs only one check: that the lock was not released.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from sluice.core import (
    StoreError,
    lock_within,
    make_private_directory,
    read_bounded,
    remove_leftovers,
    sync_directory,
    write_secret,
)
from sluice.runtime.ha.errors import EntryDamaged, LeadershipLost, PointerConflict, PointerExists, StorageUnavailable
from sluice.runtime.ha.leadership import MAX_INFORMATION_BYTES, LeaderInformation, Leadership
from sluice.runtime.ha.pointers import FOLDERS, MAX_POINTER_BYTES, Pointer, check_pointer
from sluice.runtime.ha.standbys import StandbyFiles, StandbyMark

LOCK_POLL_SECONDS = 0.2
"""The interval at which a standby tries to get the lock."""
FAILED_SECONDS = 5.0
_LOG = logging.getLogger(__name__)

_LOCK, _EPOCH, _LEADER, _STANDBYS = "leader.lock", "epoch", "leader.json", "standbys"
_MAX_FILE_BYTES = 4 * MAX_POINTER_BYTES


class _PointerFile(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer on disk; the digest covers version and value."""

    version: int
    value: bytes
    sha256: str


def _digest(version: int, value: bytes) -> str:
    return hashlib.sha256(b"%d:" % version + value).hexdigest()


class EmbeddedElection:
    """A :class:`~sluice.runtime.ha.leadership.LeaderElection` on one machine, by a file lock.

    All files are below ``root``. Other processes see ``name`` while this process stands by. A process that
    gets the lock but cannot begin its term releases it and waits ``pause`` seconds.
    """

    across_machines = False

    def __init__(self, root: Path, name: str = "", *, pause: float = FAILED_SECONDS) -> None:
        self._root = make_private_directory(root)
        self._name = name
        self._pause = pause
        self._standbys = StandbyFiles(root / _STANDBYS)

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        """Wait for the lock; raise ``StoreError`` when the home is unusable and this process has not stood by yet."""
        stood_by = False

        def told() -> None:
            nonlocal stood_by
            stood_by = True
            standing_by()

        while True:
            try:
                return await self._wait_for_lock(told)
            except (StoreError, OSError) as error:
                if not stood_by:
                    raise
                _LOG.error("cannot begin to lead: %s", error)
            await asyncio.sleep(self._pause)

    async def _wait_for_lock(self, standing_by: Callable[[], None]) -> Leadership:
        descriptor = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        mark: StandbyMark | None = None
        try:
            while not lock_within(descriptor, 0):
                if self._name and mark is None:
                    mark = self._standbys.add_mark(self._name)
                standing_by()
                await asyncio.sleep(LOCK_POLL_SECONDS)
            return EmbeddedLeadership(self._root, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            if mark is not None:
                mark.remove()

    async def leader(self) -> LeaderInformation | None:
        """The current leader, or None when it is unknown."""
        try:
            return LeaderInformation.decode(read_bounded(self._root / _LEADER, MAX_INFORMATION_BYTES))
        except (StoreError, EntryDamaged):
            return None

    async def standbys(self) -> tuple[str, ...] | None:
        """Names of the candidates that do not lead, or None when unknown. The names are not authenticated."""
        return await asyncio.to_thread(self._standbys.names)

    async def close(self) -> None:
        """Do nothing: no resource stays open between terms."""


class EmbeddedLeadership:
    """One term of leadership; see :class:`~sluice.runtime.ha.leadership.Leadership`."""

    def __init__(self, root: Path, lock: int) -> None:
        self._root = root
        self._lock: int | None = lock
        self.granted_at = time.monotonic()
        self.epoch = _next_epoch(root / _EPOCH)
        self.pointers = FilePointers(root / "pointers")

    def check(self) -> None:
        """Raise ``LeadershipLost`` after :meth:`resign`; a live process cannot lose the lock otherwise."""
        if self._lock is None:
            raise LeadershipLost("this process has given up its leadership")

    async def lost(self) -> str:
        """Never return: the kernel does not take the lock from a live process."""
        await asyncio.Event().wait()
        return ""

    async def publish(self, information: LeaderInformation) -> None:
        """Publish the leader's address."""
        self.check()
        write_secret(self._root / _LEADER, information.encode())

    async def resign(self) -> None:
        """Give up the leadership if it is still held; no write follows."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            await asyncio.to_thread(self.pointers.close)
            (self._root / _LEADER).unlink(missing_ok=True)
            os.close(lock)


def _next_epoch(path: Path) -> int:
    """Increment the epoch durably. A damaged counter does not prevent leading: the wall clock replaces it."""
    try:
        epoch = int(read_bounded(path, 32)) + 1
    except (StoreError, ValueError):
        epoch = int(time.time()) if path.exists() else 1
    write_secret(path, b"%d" % epoch)
    return epoch


class FilePointers:
    """Pointers as files. No pointer is written after :meth:`close` has returned."""

    def __init__(self, root: Path) -> None:
        self._root = make_private_directory(root)
        self._writing = threading.Lock()
        self._closed = False
        for folder in FOLDERS:
            remove_leftovers(make_private_directory(root / folder))

    async def names(self, folder: str) -> list[str]:
        """The names of all pointers in a folder, sorted."""
        return await asyncio.to_thread(self._names, folder)

    async def get(self, folder: str, name: str) -> Pointer | None:
        """The pointer, or None when it does not exist; raises ``EntryDamaged``."""
        return await asyncio.to_thread(self._get, folder, name)

    async def create(self, folder: str, name: str, value: bytes) -> None:
        """Create a pointer; raises ``PointerExists``."""
        await asyncio.to_thread(self._create, folder, name, value)

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        """Replace a pointer if it still has ``version``; raises ``PointerConflict`` otherwise."""
        await asyncio.to_thread(self._replace, folder, name, value, version)

    async def remove(self, folder: str, name: str) -> None:
        """Remove a pointer; do nothing when it does not exist."""
        await asyncio.to_thread(self._remove, folder, name)

    def close(self) -> None:
        """Wait for the write in progress and refuse further ones."""
        with self._writing:
            self._closed = True

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        with self._writing:
            if self._closed:
                raise LeadershipLost("this process has given up its leadership")
            yield

    def _names(self, folder: str) -> list[str]:
        directory = self._root / folder
        try:
            return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
        except OSError as error:
            raise StorageUnavailable(
                f"the pointers in {directory} cannot be read: {error.strerror or error}", "see the home directory"
            ) from error

    def _remove(self, folder: str, name: str) -> None:
        check_pointer(folder, name)
        with self._open():
            path = self._root / folder / name
            if path.exists():
                path.unlink()
                sync_directory(path.parent)

    def _get(self, folder: str, name: str) -> Pointer | None:
        check_pointer(folder, name)
        path = self._root / folder / name
        if not path.exists():
            return None
        try:
            stored = msgspec.json.decode(read_bounded(path, _MAX_FILE_BYTES), type=_PointerFile)
        except StoreError as error:
            if not path.exists():  # another thread has removed it meanwhile
                return None
            raise StorageUnavailable(error.what, "see the home directory") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EntryDamaged(f"the pointer {path} cannot be read: {error}", "restore it, or remove it") from error
        if stored.sha256 != _digest(stored.version, stored.value):
            raise EntryDamaged(f"the pointer {path} is not what was written", "restore it, or remove it")
        return Pointer(stored.value, stored.version)

    def _create(self, folder: str, name: str, value: bytes) -> None:
        check_pointer(folder, name, value)
        with self._open():
            if (self._root / folder / name).exists():
                raise PointerExists(f"there is a pointer {folder}/{name}")
            self._write(folder, name, Pointer(value, 0))

    def _replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        check_pointer(folder, name, value)
        with self._open():
            present = self._get(folder, name)
            if present is None or present.version != version:
                raise PointerConflict(f"the pointer {folder}/{name} is not at version {version} any more")
            self._write(folder, name, Pointer(value, version + 1))

    def _write(self, folder: str, name: str, pointer: Pointer) -> None:
        digest = _digest(pointer.version, pointer.value)
        file = _PointerFile(version=pointer.version, value=pointer.value, sha256=digest)
        try:
            write_secret(self._root / folder / name, msgspec.json.encode(file))
        except StoreError as error:
            raise StorageUnavailable(error.what, error.remedy) from error
