"""Checks that the HA storage is the one that the pointers refer to.

Without this check, a leader would treat every submission as lost when the storage directory is not mounted, because the
directory is empty then. And it would treat the storage as new, and discard all jobs in it, when the pointers were
removed.
"""

from __future__ import annotations

import asyncio
import secrets

from sluice.runtime.ha.errors import EntryDamaged, EntryMissing, PointerExists, StorageUnavailable
from sluice.runtime.ha.pointers import PointerStore
from sluice.runtime.ha.storage import HaStorage

_FOLDER, _NAME, _ENTRY = "meta", "storage", "identity"
_NEW = b"new:"
"""Prefix of the mark in its pointer until the mark is in the storage. Neither has any other content while it is set."""


async def check_storage(pointers: PointerStore, storage: HaStorage) -> None:
    """Mark a new storage; raise :class:`StorageUnavailable` when a storage is not the one that was marked.

    A storage with a mark is never treated as new: a missing pointer to it means that pointers were lost.
    """
    pointer = await pointers.get(_FOLDER, _NAME)
    present = await asyncio.to_thread(_mark_of, storage)
    if pointer is None:
        if present:
            raise StorageUnavailable(
                "the HA storage has content but no pointers refer to it: they were lost, or it belongs to another "
                "cluster",
                "restore the pointers (in Kubernetes the ConfigMap); or set another ha.storage or ha.cluster, which "
                "abandons the jobs and results of this one. The storage was not changed",
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
            "the HA storage is not the one that this cluster has written to", "check that ha.storage is mounted"
        )


def _mark_of(storage: HaStorage) -> bytes:
    """The storage's mark: empty when there is none, ``b"damaged"`` when it cannot be read."""
    try:
        return storage.read(_ENTRY)
    except EntryMissing:
        return b""
    except EntryDamaged:
        return b"damaged"
