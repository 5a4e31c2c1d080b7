"""Fetches JSON from external servers over HTTPS, with limits on size and time and without following redirects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from sluice.core import BodyTooLarge, read_body, tcp_connector
from sluice.gateway.errors import IssuerError
from sluice.pki.tls import EdgeTrust

MAX_DOCUMENT_BYTES = 256 << 10
TIMEOUT_SECONDS = 10.0


class Fetcher:
    """An HTTPS client for servers with certificates of one CA."""

    def __init__(self, ca_file: str = "", *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """``ca_file``: PEM file of the CA; empty: the system's CAs. Raises ``StoreError`` if it cannot be used."""
        self._trust = EdgeTrust(Path(ca_file) if ca_file else None)
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def get(self, url: str) -> object:
        """The JSON document at ``url``. Raises :class:`IssuerError`."""
        return await self._ask("GET", url, None, None)

    async def post(self, url: str, form: Mapping[str, str], authorization: str | None = None) -> object:
        """Post a form; returns the JSON answer. Raises :class:`IssuerError`, also if the status is not 200."""
        return await self._ask("POST", url, form, authorization)

    async def _ask(self, method: str, url: str, form: Mapping[str, str] | None, authorization: str | None) -> object:
        headers = {"accept": "application/json"} | ({"authorization": authorization} if authorization else {})
        try:
            async with (
                aiohttp.ClientSession(
                    connector=tcp_connector(), timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
                ) as session,
                session.request(
                    method, url, data=form, headers=headers, ssl=self._trust.context(), allow_redirects=False
                ) as answer,
            ):
                body = await read_body(answer.content, MAX_DOCUMENT_BYTES)
                if answer.status != 200:
                    raise IssuerError(f"{url} answered {answer.status}")
        except BodyTooLarge as error:
            raise IssuerError(f"{url} sent an answer of more than {MAX_DOCUMENT_BYTES} bytes") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise IssuerError(f"{url} gave no answer: {error or type(error).__name__}") from error
        try:
            document: object = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise IssuerError(f"{url} did not answer with valid JSON") from error
        return document
