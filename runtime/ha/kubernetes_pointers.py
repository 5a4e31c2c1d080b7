"""Pointers as entries of one ConfigMap, fenced by the epoch that is written in it.

A new leader's first write raises the epoch. Every write names the resource version that it is based on, so that one of
an earlier leader conflicts from then on, however late it arrives; and on a conflict the epoch tells who leads.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import re
from collections.abc import Callable
from typing import Any

from runtime.ha.errors import (
    EntryDamaged,
    HaError,
    LeadershipLost,
    OutcomeUnknown,
    PointerConflict,
    PointerExists,
)
from runtime.ha.kubernetes_client import (
    CONFIG_MAPS,
    KubernetesClient,
    Object,
    ObjectConflict,
    ObjectMissing,
    RequestUnsettled,
)
from runtime.ha.pointers import Pointer, check_pointer

EPOCH = "sluice.epoch"
"""The annotation with the epoch of the leader that may write."""
MAX_TOTAL_BYTES = 900 << 10
"""Largest sum of all values; a ConfigMap takes 1 MiB."""
RETRY_SECONDS = 0.2

_TEXT = re.compile(r"([0-9]{1,18}):([A-Za-z0-9+/=]*)")
_Change = Callable[[dict[str, str]], None]


class KubernetesPointers:
    """See the module's documentation, and :class:`~runtime.ha.pointers.PointerStore`.

    Args:
        client: to the API server.
        name: of the ConfigMap.
        epoch: of this leadership.
        check: raises ``LeadershipLost``.
    """

    def __init__(self, client: KubernetesClient, name: str, epoch: int, check: Callable[[], None]) -> None:
        self._client = client
        self._name = name
        self._epoch = epoch
        self._check = check
        self._object: Object = {}
        self._writing = asyncio.Lock()

    async def claim(self) -> None:
        """Raise the epoch: no earlier leader writes from now on."""
        while True:
            self._check()
            try:
                present = await self._read()
                if _epoch_of(present) == self._epoch:
                    self._object = present
                    return
                wanted = copy.deepcopy(present)
                wanted["metadata"].setdefault("annotations", {})[EPOCH] = str(self._epoch)
                self._object = await self._client.replace(CONFIG_MAPS, "configmaps", wanted)
            except ObjectMissing:
                await self._make()
            except (ObjectConflict, RequestUnsettled):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def names(self, folder: str) -> list[str]:
        """See :class:`~runtime.ha.pointers.PointerStore`."""
        self._check()
        prefix = f"{folder}."
        return sorted(key.removeprefix(prefix) for key in self._data(self._object) if key.startswith(prefix))

    async def get(self, folder: str, name: str) -> Pointer | None:
        """See :class:`~runtime.ha.pointers.PointerStore`. Nobody else writes: what was read or written last counts."""
        check_pointer(folder, name)
        self._check()
        return _pointer(self._data(self._object), f"{folder}.{name}")

    async def create(self, folder: str, name: str, value: bytes) -> None:
        """See :class:`~runtime.ha.pointers.PointerStore`."""
        check_pointer(folder, name, value)
        key = f"{folder}.{name}"

        def change(data: dict[str, str]) -> None:
            if key in data:
                raise PointerExists(f"there is a pointer {folder}/{name}")
            data[key] = _text(Pointer(value, 0))

        await self._write(change, lambda data: data.get(key) == _text(Pointer(value, 0)))

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        """See :class:`~runtime.ha.pointers.PointerStore`."""
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
        """See :class:`~runtime.ha.pointers.PointerStore`."""
        check_pointer(folder, name)
        key = f"{folder}.{name}"
        if key in self._data(self._object):
            await self._write(lambda data: data.pop(key, None), lambda data: key not in data)

    async def _write(self, change: Callable[[dict[str, str]], Any], done: Callable[[dict[str, str]], bool]) -> None:
        """Change the ConfigMap under the epoch; one that may have been changed already is looked at first."""
        unknown = False
        async with self._writing:
            while True:
                self._still(unknown)
                if unknown:
                    try:
                        self._object = await self._read()
                    except RequestUnsettled:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    if done(self._data(self._object)):
                        return
                wanted = copy.deepcopy(self._object)
                data = wanted["data"] = dict(self._data(wanted))
                change(data)
                if sum(map(len, data.values())) > MAX_TOTAL_BYTES:
                    raise HaError(f"more than {MAX_TOTAL_BYTES} bytes of pointers", "keep fewer finished jobs")
                try:
                    self._object = await self._client.replace(CONFIG_MAPS, "configmaps", wanted)
                except (ObjectConflict, RequestUnsettled):
                    unknown = True
                    continue
                return

    async def _read(self) -> Object:
        """The ConfigMap; raises ``LeadershipLost`` when a later leader has written to it."""
        present = await self._client.get(CONFIG_MAPS, "configmaps", self._name)
        if _epoch_of(present) > self._epoch:
            raise LeadershipLost("another JobManager leads: the epoch is higher than ours")
        return present

    async def _make(self) -> None:
        metadata = {"name": self._name, "annotations": {EPOCH: "0"}}
        content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}
        try:
            await self._client.create(CONFIG_MAPS, "configmaps", content)
        except (ObjectConflict, RequestUnsettled):
            await asyncio.sleep(RETRY_SECONDS)

    def _still(self, unknown: bool) -> None:
        try:
            self._check()
        except LeadershipLost as error:
            if unknown:
                raise OutcomeUnknown(
                    "leadership was lost while this was written", "look whether it was done, see the list of jobs"
                ) from error
            raise

    @staticmethod
    def _data(content: Object) -> dict[str, str]:
        return content.get("data") or {}


async def written_epoch(client: KubernetesClient, name: str) -> int:
    """The epoch of who wrote last to the ConfigMap; 0 when there is none."""
    try:
        return _epoch_of(await client.get(CONFIG_MAPS, "configmaps", name))
    except ObjectMissing:
        return 0


def _epoch_of(content: Object) -> int:
    text = (content["metadata"].get("annotations") or {}).get(EPOCH, "0")
    if not (isinstance(text, str) and text.isascii() and text.isdigit()):
        raise EntryDamaged(f"the epoch of the ConfigMap is {str(text)[:40]!r}", "restore it, or remove the ConfigMap")
    return int(text)


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
