"""The gateway's public keys, fetched from the auth service of another machine into the file of this home.

A key is published a minute before it signs, so that asking now and then is enough.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp

from sluice.core.errors import AssertionRefused, SluiceError
from sluice.core.files import make_private_directory, write_public
from sluice.core.http_body import BodyTooLarge, read_body
from sluice.pki.assertions.keys import MAX_JWKS_BYTES
from sluice.pki.assertions.tokens import decode_jwks
from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity

_LOG = logging.getLogger(__name__)

JWKS_PATH = "/auth/assertion-jwks.json"
FETCH_SECONDS = 20.0
"""How often another machine's auth service is asked."""
FIRST_FETCH_SECONDS = 1.0
"""How often until it has answered for the first time."""
ANSWER_SECONDS = 10.0


async def fetch_forever(identity: TlsIdentity, host: str, port: int, path: Path) -> None:
    """Keep the key set of the auth service at ``host`` in the file ``path``; when it is away, the last one stays."""
    delay = FIRST_FETCH_SECONDS
    while True:
        try:
            data = await fetch(identity, host, port)
            decode_jwks(data)
            if await asyncio.to_thread(_keep, path, data):
                _LOG.info("the gateway's keys are those of %s:%d now", host, port)
            delay = FETCH_SECONDS
        except (SluiceError, OSError) as error:
            _LOG.warning("cannot get the gateway's keys from %s:%d: %s", host, port, error)
            delay = FIRST_FETCH_SECONDS if delay < FETCH_SECONDS else FETCH_SECONDS
        await asyncio.sleep(delay)


def _keep(path: Path, data: bytes) -> bool:
    """Write ``data`` unless it is there; whether it was written."""
    make_private_directory(path.parent)
    if path.exists() and path.read_bytes() == data:
        return False
    write_public(path, data)
    return True


async def fetch(identity: TlsIdentity, host: str, port: int) -> bytes:
    """The key set of the auth service at ``host``, unread; raises :class:`~sluice.core.errors.AssertionRefused`."""
    policy = server_policy(Channel.AUTH, identity.spiffe_id.trust_domain, role=Role.AUTH)
    context = identity.client_context(policy, alpn=("http/1.1",))
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}{JWKS_PATH}"
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(url, server_hostname="", allow_redirects=False) as answer,
        ):
            data = await read_body(answer.content, MAX_JWKS_BYTES)
            if answer.status != 200:
                raise AssertionRefused(f"the auth service answered {JWKS_PATH} with status {answer.status}")
            return data
    except (aiohttp.ClientError, TimeoutError, BodyTooLarge) as error:
        raise AssertionRefused(f"no answer: {error or type(error).__name__}") from error
