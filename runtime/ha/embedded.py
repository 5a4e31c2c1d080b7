"""Leadership among the JobManagers of one home: a lock that the kernel releases when its holder dies.

The lock (flock(2) on a file of a local file system) is held for the whole of a term, and nobody can take it from a
process that lives: a write under it needs no further check than that it was not given back.
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
"""How often a standby tries to get the lock."""
FAILED_SECONDS = 5.0
_LOG = logging.getLogger(__name__)

_LOCK, _EPOCH, _LEADER, _STANDBYS = "leader.lock", "epoch", "leader.json", "standbys"
_MAX_FILE_BYTES = 4 * MAX_POINTER_BYTES


class _PointerFile(msgspec.Struct, frozen=True, kw_only=True):
    """A pointer on disk; the digest is over version and value."""

    version: int
    value: bytes
    sha256: str


def _digest(version: int, value: bytes) -> str:
    return hashlib.sha256(b"%d:" % version + value).hexdigest()


class EmbeddedElection:
    """A :class:`~sluice.runtime.ha.leadership.LeaderElection` on one machine, by a file lock.

    Everything is below ``root``; others see ``name`` while this process stands by. One that got the lock and could not
    begin leaves it to others for ``pause`` seconds.
    """

    across_machines = False

    def __init__(self, root: Path, name: str = "", *, pause: float = FAILED_SECONDS) -> None:
        self._root = make_private_directory(root)
        self._name = name
        self._pause = pause
        self._standbys = StandbyFiles(root / _STANDBYS)

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        """Wait for the lock; raises ``StoreError`` when the home cannot be used."""
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
                    mark = self._standbys.show(self._name)
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
        """The leader; None when none is known."""
        try:
            return LeaderInformation.decode(read_bounded(self._root / _LEADER, MAX_INFORMATION_BYTES))
        except (StoreError, EntryDamaged):
            return None

    async def standbys(self) -> tuple[str, ...] | None:
        """Names of those who take part and do not lead, None where that is not known. They prove nothing."""
        return await asyncio.to_thread(self._standbys.names)

    async def close(self) -> None:
        """Nothing is kept open between terms."""


class EmbeddedLeadership:
    """One term; see :class:`~sluice.runtime.ha.leadership.Leadership`."""

    def __init__(self, root: Path, lock: int) -> None:
        self._root = root
        self._lock: int | None = lock
        self.granted_at = time.monotonic()
        self.epoch = _next_epoch(root / _EPOCH)
        self.pointers = FilePointers(root / "pointers")

    def check(self) -> None:
        """The lock cannot be lost while the process lives."""
        if self._lock is None:
            raise LeadershipLost("this process has given up its leadership")

    async def lost(self) -> str:
        """Never happens by itself."""
        await asyncio.Event().wait()
        return ""

    async def publish(self, information: LeaderInformation) -> None:
        """Let others know where the leader is."""
        self.check()
        write_secret(self._root / _LEADER, information.encode())

    async def resign(self) -> None:
        """Give it back, or leave it lost; nothing is written after that."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            await asyncio.to_thread(self.pointers.close)
            (self._root / _LEADER).unlink(missing_ok=True)
            os.close(lock)


def _next_epoch(path: Path) -> int:
    """Count one up, durably. A damaged count is no reason not to lead: time goes upwards, too."""
    try:
        epoch = int(read_bounded(path, 32)) + 1
    except (StoreError, ValueError):
        epoch = int(time.time()) if path.exists() else 1
    write_secret(path, b"%d" % epoch)
    return epoch


class FilePointers:
    """Pointers as files; none is written once :meth:`close` has returned."""

    def __init__(self, root: Path) -> None:
        self._root = make_private_directory(root)
        self._writing = threading.Lock()
        self._closed = False
        for folder in FOLDERS:
            remove_leftovers(make_private_directory(root / folder))

    async def names(self, folder: str) -> list[str]:
        """The names of all pointers of a folder, sorted."""
        return await asyncio.to_thread(self._names, folder)

    async def get(self, folder: str, name: str) -> Pointer | None:
        """A pointer, None when there is none; raises ``EntryDamaged``."""
        return await asyncio.to_thread(self._get, folder, name)

    async def create(self, folder: str, name: str, value: bytes) -> None:
        """Make a pointer; raises ``PointerExists``."""
        await asyncio.to_thread(self._create, folder, name, value)

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        """Change a pointer that still has ``version``; raises ``PointerConflict``."""
        await asyncio.to_thread(self._replace, folder, name, value, version)

    async def remove(self, folder: str, name: str) -> None:
        """Remove a pointer; none is no error."""
        await asyncio.to_thread(self._remove, folder, name)

    def close(self) -> None:
        """Wait for the write in progress, and take no more."""
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
