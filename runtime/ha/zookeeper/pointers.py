"""Pointers as ZooKeeper nodes. Each write is a transaction that checks the writer's latch; see ``election.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from kazoo.client import TransactionRequest  # type: ignore[import-untyped]  # has no types
from kazoo.exceptions import (  # type: ignore[import-untyped]
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
)

from sluice.runtime.ha.errors import LeadershipLost, OutcomeUnknown, PointerConflict, PointerExists, StorageUnavailable
from sluice.runtime.ha.pointers import Pointer, check_pointer
from sluice.runtime.ha.zookeeper.session import ZooKeeperSession

_T = TypeVar("_T")

RETRY_SECONDS = 0.2


class ZooKeeperPointers:
    """Pointers as ZooKeeper nodes (:class:`~sluice.runtime.ha.pointers.PointerStore`).

    Args:
        root: path of the node above the folders.
        latch: path of the node whose existence proves the leadership; it is deleted with the session.
        acl: access control list for new nodes.
        check: raises ``LeadershipLost`` unless this process certainly leads.
    """

    def __init__(
        self, session: ZooKeeperSession, root: str, latch: str, acl: Sequence[Any], check: Callable[[], None]
    ) -> None:
        self._session = session
        self._root = root
        self._latch = latch
        self._acl = list(acl)
        self._check = check

    async def names(self, folder: str) -> list[str]:
        """The names of all pointers in a folder, sorted."""
        return sorted(await self._read(lambda: self._session.children(f"{self._root}/{folder}")))

    async def get(self, folder: str, name: str) -> Pointer | None:
        """The pointer, or None when it does not exist; raises ``EntryDamaged``."""
        check_pointer(folder, name)
        path = self._path(folder, name)

        async def read() -> Pointer | None:
            try:
                value, version = await self._session.get(path)
            except NoNodeError:
                return None
            return Pointer(value, version)

        return await self._read(read)

    async def create(self, folder: str, name: str, value: bytes) -> None:
        """Create a pointer; raises ``PointerExists``."""
        check_pointer(folder, name, value)
        path = self._path(folder, name)

        async def done() -> bool:
            present = await self.get(folder, name)
            return present is not None and present.value == value and present.version == 0

        try:
            await self._write(lambda t: t.create(path, value, acl=self._acl), done)
        except NodeExistsError:
            raise PointerExists(f"there is a pointer {folder}/{name}") from None
        except NoNodeError:
            raise self._removed() from None

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        """Replace a pointer if it still has ``version``; raises ``PointerConflict`` otherwise."""
        check_pointer(folder, name, value)
        path = self._path(folder, name)

        async def done() -> bool:
            present = await self.get(folder, name)
            return present is not None and present.value == value and present.version == version + 1

        try:
            await self._write(lambda t: t.set_data(path, value, version), done)
        except (BadVersionError, NoNodeError):
            raise PointerConflict(f"the pointer {folder}/{name} is not at version {version} any more") from None

    async def remove(self, folder: str, name: str) -> None:
        """Remove a pointer; do nothing when it does not exist."""
        check_pointer(folder, name)
        path = self._path(folder, name)

        async def done() -> bool:
            return await self.get(folder, name) is None

        try:
            await self._write(lambda t: t.delete(path), done)
        except NoNodeError:
            return

    async def publish(self, path: str, value: bytes) -> None:
        """Create an ephemeral node that is deleted when the leadership ends."""

        async def done() -> bool:
            try:
                return (await self._session.get(path))[0] == value
            except NoNodeError:
                return False

        await self._write(lambda t: t.create(path, value, acl=self._acl, ephemeral=True), done)

    def _removed(self) -> StorageUnavailable:
        return StorageUnavailable(
            f"somebody has removed a folder of pointers below {self._root} in ZooKeeper",
            "restore it from a backup; the next leader creates an empty folder otherwise",
        )

    def _path(self, folder: str, name: str) -> str:
        return f"{self._root}/{folder}/{name}"

    async def _write(
        self, operation: Callable[[TransactionRequest], None], done: Callable[[], Awaitable[bool]]
    ) -> None:
        """Execute ``operation`` in one transaction with the check that the latch still exists.

        A broken connection leaves the outcome unknown: then ``done`` finds out, and the operation is tried again.
        """
        unknown = False
        while True:
            self._check_still_leading(unknown)
            transaction = self._session.transaction()
            transaction.check(self._latch, -1)
            operation(transaction)
            try:
                results = await self._session.commit(transaction)
            except KazooException:
                unknown = True
                await asyncio.sleep(RETRY_SECONDS)
                try:
                    if await done():
                        return
                except LeadershipLost:
                    self._check_still_leading(unknown=True)
                    raise
                continue
            latch, outcome = results
            if isinstance(latch, NoNodeError):
                raise LeadershipLost("another JobManager leads: its latch has replaced ours")
            if not isinstance(outcome, Exception):
                return
            if unknown and await done():
                return  # an earlier try was carried out after all
            raise outcome

    def _check_still_leading(self, unknown: bool) -> None:
        try:
            self._check()
        except LeadershipLost as error:
            if unknown:
                raise OutcomeUnknown("leadership was lost during the write", "check the list of jobs") from error
            raise

    async def _read(self, read: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            self._check()
            try:
                return await read()
            except NoNodeError:
                raise self._removed() from None
            except KazooException:
                self._check()
            await asyncio.sleep(RETRY_SECONDS)
