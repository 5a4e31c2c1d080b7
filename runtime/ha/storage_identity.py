"""Whether the HA storage is the one that the pointers point into.

A directory that is not mounted is empty: without this check a leader would take every submission for lost.
"""

from __future__ import annotations

import asyncio
import secrets

from runtime.ha.errors import EntryDamaged, EntryMissing, PointerExists, StorageUnavailable
from runtime.ha.pointers import PointerStore
from runtime.ha.storage import HaStorage

_FOLDER, _NAME, _ENTRY = "meta", "storage", "identity"


async def check_storage(pointers: PointerStore, storage: HaStorage) -> None:
    """Mark a new storage; raise :class:`StorageUnavailable` when it is not the one that was marked."""
    pointer = await pointers.get(_FOLDER, _NAME)
    if pointer is None:
        mark = secrets.token_hex(16).encode()
        await asyncio.to_thread(storage.write, _ENTRY, mark)
        try:
            await pointers.create(_FOLDER, _NAME, mark)
        except PointerExists:
            await check_storage(pointers, storage)
        return
    try:
        present = await asyncio.to_thread(storage.read, _ENTRY)
    except (EntryMissing, EntryDamaged):
        present = b""
    if present != pointer.value:
        raise StorageUnavailable(
            "the HA storage is not the one that this cluster has written to", "is it mounted? see ha.storage"
        )
