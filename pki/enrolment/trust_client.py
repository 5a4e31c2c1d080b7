"""Asking the online authority what is to be trusted, and waiting there for a change."""

from __future__ import annotations

import aiohttp
import msgspec

from sluice.core.http_body import BodyTooLarge, read_body
from sluice.pki.ca.protocol import (
    MAX_TRUST_ANSWER_BYTES,
    TRUST_PATH,
    TRUST_WAIT_SECONDS,
    Problem,
    TrustAnswer,
    TrustRequest,
)
from sluice.pki.enrolment.client import Address, mutual_context, problem_error
from sluice.pki.errors import CaUnavailable
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.parse_errors import DAMAGED_JSON

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = TRUST_WAIT_SECONDS + 10.0
"""How long an answer may take to begin, and each part of it to follow."""
WHOLE_SECONDS = ANSWER_SECONDS + 30.0
_AT_ONCE = TrustRequest()


async def fetch_trust(identity: TlsIdentity, address: Address, asked: TrustRequest = _AT_ONCE) -> TrustAnswer:
    """What is to be trusted, as soon as its version is not the known one; else, after a while, that nothing changed.

    Args:
        identity: who asks; any process that the online authority renews.
        address: of the mutual TLS port.
        asked: what is known, and what is in use.

    Raises:
        CaUnavailable: no answer, too large an answer, or not from the online authority.
        RateLimited: too many ask; come back later.
    """
    host, port = address
    timeout = aiohttp.ClientTimeout(total=WHOLE_SECONDS, connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS)
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}{TRUST_PATH}"
    try:
        connector = aiohttp.TCPConnector(ssl=mutual_context(identity), force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
            session.post(
                url,
                data=msgspec.json.encode(asked),
                headers={"accept-encoding": "identity", "content-type": "application/json"},
                allow_redirects=False,
            ) as response,
        ):
            status, data = response.status, await read_body(response.content, MAX_TRUST_ANSWER_BYTES)
    except BodyTooLarge as error:
        raise CaUnavailable(f"the answer of the CA is larger than {MAX_TRUST_ANSWER_BYTES} bytes") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise CaUnavailable(
            f"no answer from the CA at {host}:{port}: {error or type(error).__name__}", "is `sluice run ca` running?"
        ) from error
    try:
        if status == 200:
            return msgspec.json.decode(data, type=TrustAnswer)
        problem = msgspec.json.decode(data, type=Problem)
    except DAMAGED_JSON as error:
        raise CaUnavailable(f"what answers at {host}:{port} is no CA (status {status})") from error
    raise problem_error(problem)
