"""The challenge http-01 (RFC 8555, section 8.3): a file at a fixed path of the host."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import SplitResult, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from sluice.core import BodyTooLarge, CertificateRejected, is_ip_address, read_body, url_host
from sluice.pki.acme.identifiers import Identifier, host_identifier
from sluice.pki.acme.problems import AcmeProblem, ProblemType
from sluice.pki.acme.validation.reach import Reach, Resolver
from sluice.pki.tls import challenge_client_context

TOTAL_SECONDS = 10.0
"""Limit for all of it: DNS, connections, redirects and the answer."""
MAX_REDIRECTS = 5
MAX_BODY_BYTES = 4096
MAX_URL_CHARACTERS = 2048
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


async def check_http(  # noqa: PLR0917  the challenge, and what it may connect to
    identifier: Identifier,
    token: str,
    key_authorization: str,
    reach: Reach,
    resolver: Resolver,
    refusal: Callable[[Identifier], str],
) -> None:
    """Raise :class:`AcmeProblem` unless the host serves the key authorization.

    ``refusal`` says why not to connect to the host of a redirect; empty: connect.
    """
    port = "" if reach.http_port == 80 else f":{reach.http_port}"
    url = f"http://{url_host(identifier.value)}{port}/.well-known/acme-challenge/{token}"
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            for _ in range(MAX_REDIRECTS + 1):
                location = await _fetch(url, key_authorization, reach, resolver)
                if not location:
                    return
                url = _next(url, location, reach, refusal)
    except TimeoutError:
        raise AcmeProblem(
            ProblemType.CONNECTION, f"{identifier.value} did not answer within {TOTAL_SECONDS:.0f} s"
        ) from None
    raise AcmeProblem(ProblemType.CONNECTION, f"more than {MAX_REDIRECTS} redirects")


async def _fetch(url: str, key_authorization: str, reach: Reach, resolver: Resolver) -> str:
    """Fetch one URL; returns the target of a redirect, empty when the host serves the key authorization."""
    host = host_identifier(urlsplit(url).hostname or "")
    pinned = _Pinned(await reach.addresses_of(host, resolver))
    connector = aiohttp.TCPConnector(
        resolver=pinned, use_dns_cache=False, ssl=challenge_client_context(), force_close=True, limit=1
    )
    headers = {"user-agent": "sluice-acme", "accept": "*/*"}
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector, headers=headers, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status in _REDIRECTS:
                if location := answer.headers.get("location", ""):
                    return location
                _fail(host, "a redirect without a location")
            if answer.status != 200:
                _fail(host, f"status {answer.status}")
            body = await read_body(answer.content, MAX_BODY_BYTES)
    except BodyTooLarge:
        _fail(host, f"more than {MAX_BODY_BYTES} bytes")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Only the name of the error: the client must not see what the host sent.
        raise AcmeProblem(
            ProblemType.CONNECTION,
            f"cannot ask {host.value} on port {urlsplit(url).port or 80}: {type(error).__name__}",
        ) from None
    if not hmac.compare_digest(body.rstrip(b" \t\r\n"), key_authorization.encode()):
        _fail(host, "content other than the key authorization")
    return ""


def _fail(host: Identifier, what: str) -> NoReturn:
    raise AcmeProblem(ProblemType.INCORRECT_RESPONSE, f"{host.value} answered with {what}")


def _next(url: str, location: str, reach: Reach, refusal: Callable[[Identifier], str]) -> str:
    """The URL of a redirect if it is allowed: HTTP or HTTPS, their ports, and a host that may be certified."""
    if len(location) > MAX_URL_CHARACTERS:
        raise AcmeProblem(ProblemType.CONNECTION, "the location of a redirect is too long")
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        host = host_identifier(parts.hostname or "")
        port = parts.port
    except (ValueError, CertificateRejected):
        raise AcmeProblem(ProblemType.CONNECTION, "a redirect leads to no host") from None
    if not _is_plain(parts) or port not in {None, 80, 443, reach.http_port, reach.tls_port}:
        raise AcmeProblem(ProblemType.CONNECTION, "a redirect leads to another scheme or port than those of the web")
    if why := refusal(host):
        raise AcmeProblem(ProblemType.CONNECTION, f"a redirect is not followed: {why}")
    return target


def _is_plain(parts: SplitResult) -> bool:
    return parts.scheme in {"http", "https"} and parts.username is None and parts.password is None


class _Pinned(AbstractResolver):
    """A resolver that returns the checked addresses for every name."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002  aiohttp's signature
    ) -> list[ResolveResult]:
        """All of them."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST if is_ip_address(address) else 0,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Nothing to close."""
