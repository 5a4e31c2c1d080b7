"""Fetches the gateway's public keys from the auth service on another machine into a file of this home.

A key is published a minute before it signs, so polling is enough.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluice.core import SluiceError, make_private_directory, write_public
from sluice.pki.assertions import MAX_JWKS_BYTES, decode_jwks
from sluice.runtime.rest.auth_service.client import AuthService

_LOG = logging.getLogger(__name__)

JWKS_PATH = "/auth/assertion-jwks.json"
FETCH_SECONDS = 20.0
"""Pause between two requests to the auth service."""
FIRST_FETCH_SECONDS = 1.0
"""Pause between two requests until the auth service has answered for the first time."""
ANSWER_SECONDS = 10.0


async def fetch_forever(auth: AuthService, path: Path) -> None:
    """Keep the key set of ``auth`` in the file ``path``. While ``auth`` is unavailable, the last key set stays."""
    delay = FIRST_FETCH_SECONDS
    while True:
        try:
            data = await fetch(auth)
            decode_jwks(data)
            if await asyncio.to_thread(_keep, path, data):
                _LOG.info("stored the gateway's keys from %s", auth)
            delay = FETCH_SECONDS
        except (SluiceError, OSError) as error:
            _LOG.warning("cannot get the gateway's keys from %s: %s", auth, error)
            delay = FIRST_FETCH_SECONDS if delay < FETCH_SECONDS else FETCH_SECONDS
        await asyncio.sleep(delay)


def _keep(path: Path, data: bytes) -> bool:
    """Write ``data`` if the file differs; return whether it was written."""
    make_private_directory(path.parent)
    if path.exists() and path.read_bytes() == data:
        return False
    write_public(path, data)
    return True


async def fetch(auth: AuthService) -> bytes:
    """The undecoded key set of ``auth``; raises :class:`~sluice.core.errors.AssertionRefused`."""
    return await auth.request("GET", JWKS_PATH, max_bytes=MAX_JWKS_BYTES, seconds=ANSWER_SECONDS)
