"""Whether the HA storage is the one that the pointers point into.

A directory that is not mounted is empty: without this check a leader would take every submission for lost. And pointers
that somebody has removed are none: without it a leader would take the storage for new, and all jobs in it for nothing.
"""

from __future__ import annotations

import asyncio
import secrets

from sluice.runtime.ha.errors import EntryDamaged, EntryMissing, PointerExists, StorageUnavailable
from sluice.runtime.ha.pointers import PointerStore
from sluice.runtime.ha.storage import HaStorage

_FOLDER, _NAME, _ENTRY = "meta", "storage", "identity"
_NEW = b"new:"
"""Before the mark in its pointer, until the mark is in the storage: nothing was written to either before."""


async def check_storage(pointers: PointerStore, storage: HaStorage) -> None:
    """Mark a new storage; raise :class:`StorageUnavailable` when it is not the one that was marked.

    A storage that bears a mark is never taken for new: when the pointer to it is missing, pointers are lost.
    """
    pointer = await pointers.get(_FOLDER, _NAME)
    present = await asyncio.to_thread(_mark_of, storage)
    if pointer is None:
        if present:
            raise StorageUnavailable(
                "the HA storage was written to, and there are no pointers into it: they are lost, or those of another "
                "cluster",
                "restore them (in Kubernetes the ConfigMap); or set another ha.storage or ha.cluster, which gives up "
                "the jobs and results of this one. Nothing in it was changed",
            )
        try:
            await pointers.create(_FOLDER, _NAME, _NEW + secrets.token_hex(16).encode())
        except PointerExists:
            await check_storage(pointers, storage)
            return
        pointer = await pointers.get(_FOLDER, _NAME)
    if pointer is not None and pointer.value.startswith(_NEW) and present in {b"", pointer.value.removeprefix(_NEW)}:
        mark = pointer.value.removeprefix(_NEW)
        if not present:
            await asyncio.to_thread(storage.write, _ENTRY, mark)
        await pointers.replace(_FOLDER, _NAME, mark, pointer.version)
        return
    if pointer is None or present != pointer.value:
        raise StorageUnavailable(
            "the HA storage is not the one that this cluster has written to", "is it mounted? see ha.storage"
        )


def _mark_of(storage: HaStorage) -> bytes:
    """What marks it, empty when nothing does; something else when the mark cannot be read."""
    try:
        return storage.read(_ENTRY)
    except EntryMissing:
        return b""
    except EntryDamaged:
        return b"damaged"
