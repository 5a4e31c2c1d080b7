"""One request to the online authority, and its answer or its error: JSON over HTTPS."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Literal, TypeVar

import aiohttp
import msgspec

from sluice.core import BodyTooLarge, SluiceError, host_port, read_body, tcp_connector
from sluice.pki.ca import ALPN, ERROR_STATUS, MAX_ANSWER_BYTES, Address, ErrorAnswer
from sluice.pki.channels import Channel, server_policy
from sluice.pki.errors import (
    CaUnavailable,
    RateLimited,
)
from sluice.pki.tls import TlsIdentity
from sluice.pki.x509 import DAMAGED_JSON

LONGEST_RETRY_AFTER_SECONDS = 3600.0

_ERRORS = {error.__name__: error for error in ERROR_STATUS if error is not RateLimited}
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """Limits of an exchange: its time in seconds, and the size of its answer in bytes."""

    connect: float = 10.0
    read: float = 10.0
    """Until the answer begins, and between two parts of it."""
    total: float = 60.0
    answer_bytes: int = MAX_ANSWER_BYTES


DEFAULT_LIMITS = ExchangeLimits()


def mutual_context(identity: TlsIdentity) -> ssl.SSLContext:
    """A context to connect to the online authority's mutual TLS port as ``identity``."""
    return identity.client_context(server_policy(Channel.CA, identity.spiffe_id.trust_domain), alpn=ALPN)


def call(
    address: Address,
    context: ssl.SSLContext,
    path: str,
    body: msgspec.Struct | None,
    answer: type[_Answer],
) -> _Answer:
    """A blocking :func:`exchange`, for threads without an event loop."""
    return asyncio.run(exchange(address, context, path, body, answer))


async def exchange(  # noqa: PLR0917  in the order of the wire: where, how, what, and what is expected back
    address: Address,
    context: ssl.SSLContext,
    path: str,
    body: msgspec.Struct | None,
    answer: type[_Answer],
    limits: ExchangeLimits = DEFAULT_LIMITS,
) -> _Answer:
    """POST ``body`` to ``path`` (None: GET), and return the answer.

    Raises:
        CaUnavailable: no answer, too large an answer, or not from the online authority.
        RateLimited: too many requests; come back later.
        PkiError: the error that the authority raised.
    """
    host, port = address
    method: Literal["GET", "POST"] = "GET" if body is None else "POST"
    timeout = aiohttp.ClientTimeout(total=limits.total, connect=limits.connect, sock_read=limits.read)
    url = f"https://{host_port(host, port)}{path}"
    try:
        connector = tcp_connector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
            session.request(
                method,
                url,
                data=None if body is None else msgspec.json.encode(body),
                headers={"accept-encoding": "identity", "content-type": "application/json"},
                allow_redirects=False,
            ) as response,
        ):
            status, data = response.status, await read_body(response.content, limits.answer_bytes)
    except BodyTooLarge as error:
        raise CaUnavailable(f"the CA's answer is larger than {limits.answer_bytes} bytes") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise CaUnavailable(
            f"no answer from the CA at {host}:{port}: {error or type(error).__name__}", "is `sluice run ca` running?"
        ) from error
    try:
        if status in {200, 201}:
            return msgspec.json.decode(data, type=answer)
        problem = msgspec.json.decode(data, type=ErrorAnswer)
    except DAMAGED_JSON as error:
        raise CaUnavailable(f"what answers at {host}:{port} is not a CA (status {status})") from error
    raise _error(problem)


def _error(problem: ErrorAnswer) -> SluiceError:
    """The error that the online authority answered with, as it raised it."""
    if problem.status == 429:
        return RateLimited(problem.detail, max(0.0, min(problem.retry_after, LONGEST_RETRY_AFTER_SECONDS)))
    kind = _ERRORS.get(problem.title)
    if kind is not None:
        return kind(problem.detail, problem.remedy)
    return CaUnavailable(f"the CA answered with {problem.title} (status {problem.status}): {problem.detail}")
