"""Pointers as entries of one ConfigMap, fenced by the term that is written in it.

Each term has a unique random name; its number, the epoch, is for people. A new leader's first write puts its term into
the ConfigMap. The write is based on a version that the leader read *before* it asked whether it still holds the Lease,
so a candidate that was suspended in between conflicts with the one that took over. Every later write names the resource
version it is based on, so a write by an earlier leader conflicts, however late it arrives. After a conflict, the term
in the ConfigMap shows who leads.

Only the leader writes, so it knows all pointers. If somebody removes the ConfigMap, the leader recreates it from them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.runtime.ha.errors import (
    ElectionUnavailable,
    EntryDamaged,
    LeadershipLost,
    OutcomeUnknown,
    PointerConflict,
    PointerExists,
    PointersFull,
    StorageUnavailable,
)
from sluice.runtime.ha.kubernetes.client import (
    CONFIG_MAPS,
    KubernetesClient,
    Object,
    ObjectConflict,
    ObjectMissing,
    RequestUnsettled,
)
from sluice.runtime.ha.pointers import Pointer, check_pointer

_LOG = logging.getLogger(__name__)

TERM = "sluice.term"
"""The annotation with the name of the term that may write the ConfigMap."""
EPOCH = "sluice.epoch"
"""The annotation with the number of that term."""
MAX_EPOCH = (1 << 31) - 2
"""Largest epoch that can still be incremented: a Lease counts its transitions in 32 bits."""
MAX_TOTAL_BYTES = 900 << 10
"""Largest total size of all keys and values; a ConfigMap holds 1 MiB."""
RESERVED_BYTES_PER_JOB = 2 << 10
"""Bytes reserved per unfinished job, checked when a job is accepted: for its attempts, checkpoints, history, result."""
RETRY_SECONDS = 0.2

_MARK = "meta.storage"
_JOBS = "jobs."
_TEXT = re.compile(r"([0-9]{1,18}):([A-Za-z0-9+/=]*)")


@dataclass(frozen=True, slots=True)
class Term:
    """A term: ``name`` is unique, ``epoch`` is its number."""

    epoch: int
    name: str


class Lease(Protocol):
    """The leadership that the pointers belong to, as far as they need it."""

    def check(self) -> None:
        """Return if the Lease is certainly held; raise ``LeadershipLost`` otherwise. Sends no request."""
        ...

    async def confirm(self) -> None:
        """Ask the API server whether the Lease is held; raises ``LeadershipLost`` or the client's errors."""
        ...

    def abandon(self, why: str) -> None:
        """Give up leadership while the Lease may still be held."""
        ...


class KubernetesPointers:
    """A :class:`~sluice.runtime.ha.pointers.PointerStore` of one term, writable only while the Lease is held.

    Args:
        name: name of the ConfigMap.
        term: the term that writes.
        lease: the leadership of this term.
    """

    def __init__(self, client: KubernetesClient, name: str, term: Term, lease: Lease) -> None:
        self._client = client
        self._name = name
        self._term = term
        self._lease = lease
        self._check = lease.check
        self._object: Object = {}
        self._writing = asyncio.Lock()

    async def claim(self) -> None:
        """Write our term, which fences off all other leaders; retry until it succeeds or the leadership is lost."""
        while True:
            self._check()
            try:
                present = await self._client.get(CONFIG_MAPS, "configmaps", self._name)
                if _term_of(present) != self._term.name:
                    await self._lease.confirm()
                    present = await self._client.replace(CONFIG_MAPS, "configmaps", self._marked(present))
                self._object = present
            except ObjectMissing:
                await self._make({})
            except (ObjectConflict, RequestUnsettled):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def verify(self) -> None:
        """Check that the ConfigMap exists and has our term; recreate it when somebody has removed it.

        Raises:
            LeadershipLost: the ConfigMap has another term.
            HaError: it cannot be read or created now.
        """
        async with self._writing:
            self._check()
            self._object = await self._read()

    async def names(self, folder: str) -> list[str]:
        """The names of all pointers in a folder, sorted."""
        self._check()
        prefix = f"{folder}."
        return sorted(key.removeprefix(prefix) for key in self._data(self._object) if key.startswith(prefix))

    async def get(self, folder: str, name: str) -> Pointer | None:
        """The pointer as last read or written, since nobody else writes; None when it does not exist."""
        check_pointer(folder, name)
        self._check()
        return _pointer(self._data(self._object), f"{folder}.{name}")

    async def create(self, folder: str, name: str, value: bytes) -> None:
        """Create a pointer; raises ``PointerExists``."""
        check_pointer(folder, name, value)
        key = f"{folder}.{name}"

        def change(data: dict[str, str]) -> None:
            if key in data:
                raise PointerExists(f"there is a pointer {folder}/{name}")
            data[key] = _text(Pointer(value, 0))
            if key.startswith(_JOBS):
                _check_room(data, RESERVED_BYTES_PER_JOB * sum(each.startswith(_JOBS) for each in data))

        await self._write(change, lambda data: data.get(key) == _text(Pointer(value, 0)))

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        """Replace a pointer if it still has ``version``; raises ``PointerConflict`` otherwise."""
        check_pointer(folder, name, value)
        key = f"{folder}.{name}"
        text = _text(Pointer(value, version + 1))

        def change(data: dict[str, str]) -> None:
            present = _pointer(data, key)
            if present is None or present.version != version:
                raise PointerConflict(f"the pointer {folder}/{name} is not at version {version} any more")
            data[key] = text

        await self._write(change, lambda data: data.get(key) == text)

    async def remove(self, folder: str, name: str) -> None:
        """Remove a pointer; do nothing when it does not exist."""
        check_pointer(folder, name)
        key = f"{folder}.{name}"
        if key in self._data(self._object):
            await self._write(lambda data: data.pop(key, None), lambda data: key not in data)

    async def _write(self, change: Callable[[dict[str, str]], Any], done: Callable[[dict[str, str]], bool]) -> None:
        """Change the ConfigMap under our term. Read it again first if an earlier try may have changed it.

        Args:
            change: applies the change to a copy of the data.
            done: whether the data already has the change.

        Raises:
            LeadershipLost: nothing was written.
            OutcomeUnknown: leadership was lost, and the change may have been written.
            StorageUnavailable: the API server refuses the change, and nothing was written.
        """
        look = unknown = sent = False
        async with self._writing:
            while True:
                self._check_still_leading(unknown)
                try:
                    if look:
                        sent = False
                        self._object = await self._read()
                        if done(self._data(self._object)):
                            return
                    wanted = self._marked(self._object)
                    data = wanted["data"] = dict(self._data(wanted))
                    change(data)
                    _check_room(data)
                    look = sent = True
                    self._object = await self._client.replace(CONFIG_MAPS, "configmaps", wanted)
                except (ObjectMissing, ObjectConflict):
                    continue
                except RequestUnsettled:
                    unknown = unknown or sent
                except ElectionUnavailable as error:
                    if not unknown:
                        raise StorageUnavailable(f"pointers cannot be written: {error.what}", error.remedy) from error
                except LeadershipLost as error:
                    raise self._lost(unknown, error) from error
                else:
                    return
                await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> Object:
        """Read the ConfigMap, recreating it if necessary; raises ``LeadershipLost`` when it has another term.

        A ConfigMap that has lost the storage's mark was not written by a leader: the known pointers are added to it.
        """
        try:
            present = await self._client.get(CONFIG_MAPS, "configmaps", self._name)
        except ObjectMissing:
            return await self._restore()
        if _term_of(present) != self._term.name:
            self._lease.abandon("the ConfigMap of pointers has another term, or an earlier version was restored")
            self._check()
        known = self._data(self._object)
        if _MARK in known and _MARK not in self._data(present):
            _LOG.error("somebody has emptied the ConfigMap %s: restoring the known pointers", self._name)
            present["data"] = {**known, **self._data(present)}
            present = await self._client.replace(CONFIG_MAPS, "configmaps", present)
        return present

    async def _restore(self) -> Object:
        """Recreate a removed ConfigMap if this process certainly leads."""
        await self._lease.confirm()
        _LOG.error("somebody has removed the ConfigMap %s: recreating it from the known pointers", self._name)
        return await self._client.create(CONFIG_MAPS, "configmaps", self._new(self._data(self._object)))

    async def _make(self, data: dict[str, str]) -> None:
        await self._lease.confirm()
        try:
            await self._client.create(CONFIG_MAPS, "configmaps", self._new(data))
        except (ObjectConflict, RequestUnsettled):
            await asyncio.sleep(RETRY_SECONDS)

    def _new(self, data: dict[str, str]) -> Object:
        return self._marked({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name}, "data": data})

    def _marked(self, content: Object) -> Object:
        """A copy of ``content`` annotated with our term."""
        wanted = copy.deepcopy(content)
        annotations = wanted["metadata"]["annotations"] = dict(wanted["metadata"].get("annotations") or {})
        annotations |= {TERM: self._term.name, EPOCH: str(self._term.epoch)}
        return wanted

    def _check_still_leading(self, unknown: bool) -> None:
        try:
            self._check()
        except LeadershipLost as error:
            raise self._lost(unknown, error) from error

    @staticmethod
    def _lost(unknown: bool, error: LeadershipLost) -> LeadershipLost:
        if not unknown:
            return error
        return OutcomeUnknown("leadership was lost during the write", "check the list of jobs")

    @staticmethod
    def _data(content: Object) -> dict[str, str]:
        return content.get("data") or {}


async def written_epoch(client: KubernetesClient, name: str) -> int:
    """The epoch of the last writer of the ConfigMap; 0 when it is missing or cannot be read."""
    try:
        present = await client.get(CONFIG_MAPS, "configmaps", name)
    except ObjectMissing:
        return 0
    text = (present["metadata"].get("annotations") or {}).get(EPOCH, "0")
    if isinstance(text, str) and text.isascii() and text.isdigit() and int(text[:20]) <= MAX_EPOCH:
        return int(text)
    _LOG.warning("the epoch of the ConfigMap %s is %r: using the Lease's epoch instead", name, str(text)[:40])
    return 0


def _term_of(content: Object) -> str:
    return str((content["metadata"].get("annotations") or {}).get(TERM, ""))


def _check_room(data: dict[str, str], reserved: int = 0) -> None:
    size = sum(len(key) + len(value) for key, value in data.items())
    if size + reserved > MAX_TOTAL_BYTES:
        raise PointersFull(
            f"the pointers have {size} of {MAX_TOTAL_BYTES} bytes, and unfinished jobs need {reserved} more",
            "wait until jobs have ended, or keep fewer finished ones (jobmanager.finished_jobs_kept)",
        )


def _text(pointer: Pointer) -> str:
    return f"{pointer.version}:{base64.b64encode(pointer.value).decode()}"


def _pointer(data: dict[str, str], key: str) -> Pointer | None:
    text = data.get(key)
    if text is None:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise EntryDamaged(f"the pointer {key} cannot be read", "restore it, or remove it")
    try:
        return Pointer(base64.b64decode(match[2], validate=True), int(match[1]))
    except (ValueError, binascii.Error) as error:
        raise EntryDamaged(f"the pointer {key} cannot be read", "restore it, or remove it") from error
