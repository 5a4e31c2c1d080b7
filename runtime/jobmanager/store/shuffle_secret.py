"""The secret that all JobManagers of a cluster share. The shuffle service checks with it which job a request is for."""

from __future__ import annotations

import contextlib
import secrets

from sluice.runtime.ha import EntryMissing, PointerExists, PointerStore

SECRET_BYTES = 32
_FOLDER, _NAME = "meta", "shuffle-secret"


async def shuffle_secret(pointers: PointerStore) -> bytes:
    """The secret of the cluster that ``pointers`` belong to; the first call makes it. Raises ``EntryMissing``."""
    with contextlib.suppress(PointerExists):
        if await pointers.get(_FOLDER, _NAME) is None:
            await pointers.create(_FOLDER, _NAME, secrets.token_bytes(SECRET_BYTES))
    found = await pointers.get(_FOLDER, _NAME)
    if found is None:
        raise EntryMissing(f"the pointer {_FOLDER}/{_NAME} was removed", "start the JobManager again")
    return found.value
