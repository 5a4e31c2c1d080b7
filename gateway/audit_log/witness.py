"""Stores checkpoints outside the cluster: in a file, or at a URL that supports PUT and GET."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import aiohttp

from sluice.core import BodyTooLarge, StoreError, read_body, read_bounded, read_secret, tcp_connector, write_public
from sluice.gateway.audit_log.chain import MAX_LINE_BYTES
from sluice.gateway.config import check_url
from sluice.gateway.errors import AuditLogError
from sluice.pki.tls import EdgeTrust

TIMEOUT_SECONDS = 30.0
MAX_TOKEN_BYTES = 16 << 10


class Witness(Protocol):
    """Stores one checkpoint. Both methods raise :class:`SluiceError`."""

    def read(self) -> bytes | None:
        """The stored checkpoint; None if there is none yet."""
        ...

    def write(self, checkpoint: bytes) -> None:
        """Store ``checkpoint``, replacing the one before."""
        ...


def witness_at(place: str, *, ca_file: Path | None = None, token_file: Path | None = None) -> Witness:
    """The witness at ``place``.

    Args:
        place: path of a file, or an HTTPS URL.
        ca_file: CAs of the URL's host; None: the system's CAs.
        token_file: file with a bearer token for the URL (mode 0600).
    """
    if "://" not in place:
        return _File(Path(place))
    try:
        check_url("the witness", place)
    except ValueError as error:
        raise AuditLogError(str(error)) from error
    token = "" if token_file is None else read_secret(token_file, MAX_TOKEN_BYTES).decode(errors="replace").strip()
    if token_file is not None and not (token.isascii() and token.isprintable() and token):
        raise StoreError(f"{token_file} holds no bearer token", "write the token there as one line of printable ASCII")
    return _Url(place, EdgeTrust(ca_file), token)


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes | None:
        return read_bounded(self._path, MAX_LINE_BYTES) if self._path.exists() else None

    def write(self, checkpoint: bytes) -> None:
        write_public(self._path, checkpoint)


class _Url:
    def __init__(self, url: str, trust: EdgeTrust, token: str) -> None:
        self._url = url
        self._trust = trust
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def read(self) -> bytes | None:
        return asyncio.run(self._ask("GET", None))

    def write(self, checkpoint: bytes) -> None:
        asyncio.run(self._ask("PUT", checkpoint))

    async def _ask(self, method: str, body: bytes | None) -> bytes | None:
        headers = self._headers | ({"content-type": "application/json"} if body else {})
        try:
            async with (
                aiohttp.ClientSession(
                    connector=tcp_connector(),
                    timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
                    cookie_jar=aiohttp.DummyCookieJar(),
                ) as session,
                session.request(
                    method, self._url, data=body, headers=headers, ssl=self._trust.context(), allow_redirects=False
                ) as answer,
            ):
                if method == "GET" and answer.status == 404:
                    return None
                if not 200 <= answer.status < 300:
                    raise AuditLogError(f"{self._url} answered {answer.status} to {method}")
                return await read_body(answer.content, MAX_LINE_BYTES)
        except BodyTooLarge as error:
            raise AuditLogError(f"{self._url} sent an answer larger than a checkpoint") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise AuditLogError(f"{self._url} gave no answer: {error or type(error).__name__}") from error
