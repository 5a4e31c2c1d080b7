"""HTTPS to the ACME server for the library: one origin, verified, without redirects, bounded in size and time.

The server is somebody else's, and a directory could name any URL: what is signed with the account's key goes to the
origin of the directory alone.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.response import BaseHTTPResponse

from sluice.core import StoreError
from sluice.gateway.errors import AcmeError

MAX_ANSWER_BYTES = 256 << 10
"""A chain of certificates, or a directory: tens of kilobytes."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
"""Longest pause in an answer."""
ANSWER_SECONDS = 60.0
"""How long an answer may take as a whole."""
MAX_REQUESTS = 300
"""For one order: with the most names and patient polling it takes fewer."""
_HTTPS_PORT = 443


class BoundedTransport(HTTPAdapter):
    """Mounted for all URLs of a session.

    Attributes:
        retry_after: what the last answer asked for in seconds from then, or None.
    """

    def __init__(self, directory: str, context: ssl.SSLContext, clock: Callable[[], dt.datetime]) -> None:
        self._origin = _origin(directory)
        self._context = context
        self._clock = clock
        self._left = MAX_REQUESTS
        self.retry_after: dt.timedelta | None = None
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  the library's signature
        """With our TLS context."""
        super().init_poolmanager(*arguments, **named, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: str, verify: object, cert: object) -> None:  # noqa: ANN401  likewise
        """The context decides: the library would add authorities of its own to those that were configured."""
        del url, verify, cert
        conn.cert_reqs = "CERT_REQUIRED"

    def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
        """Send it to the one origin; raises :class:`AcmeError` for anything else, and for too large an answer."""
        url = request.url or ""
        # 1. Whatever URLs the server made up.
        if _origin(url) != self._origin:
            raise AcmeError(
                f"the ACME server refers to {url[:200]!r}, which is not at https://{self._origin[1]}:{self._origin[2]}",
                "check gateway.acme.directory; a server whose URLs are elsewhere is not supported",
            )
        self._left -= 1
        if self._left < 0:
            raise AcmeError(f"the ACME server wants more than {MAX_REQUESTS} requests for one certificate")
        # 2. No compression: a small answer could become a large one.
        request.headers["Accept-Encoding"] = "identity"
        response = super().send(request, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS))
        if response.is_redirect or response.is_permanent_redirect:
            response.close()
            raise AcmeError(
                f"the ACME server redirects {url[:200]!r}",
                "name the URL that it redirects to in gateway.acme.directory",
            )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            raise AcmeError("the ACME server sends a compressed answer, which nobody asked for")
        self.retry_after = retry_after(response.headers, self._clock())
        response.raw = _BoundedBody(response.raw, time.monotonic() + ANSWER_SECONDS)
        return response


class _BoundedBody:
    """What ``requests`` reads a body from."""

    def __init__(self, body: BaseHTTPResponse, deadline: float) -> None:
        self._body = body
        self._deadline = deadline
        self._left = MAX_ANSWER_BYTES

    def stream(self, amount: int, decode_content: bool = True) -> Iterator[bytes]:
        """The body, cut off by an error when it is too large or too slow."""
        del decode_content
        for chunk in self._body.stream(amount, decode_content=False):
            self._left -= len(chunk)
            if self._left < 0:
                raise AcmeError(f"the ACME server answered more than {MAX_ANSWER_BYTES} bytes")
            if time.monotonic() > self._deadline:
                raise AcmeError(f"an answer of the ACME server takes longer than {ANSWER_SECONDS:.0f} s")
            yield chunk

    def close(self) -> None:
        """End the connection."""
        self._body.close()

    def release_conn(self) -> None:
        """Keep the connection for the next request."""
        self._body.release_conn()


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Trusts ``ca_file`` alone, or the system's authorities when it is empty; host names are checked."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise StoreError(f"cannot use gateway.acme.ca_file {ca_file}: {error}", "name a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def retry_after(headers: Mapping[str, str], now: dt.datetime) -> dt.timedelta | None:
    """The header (RFC 9110, 10.2.3) as a time from now; None when there is none that can be read."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return dt.timedelta(seconds=int(value))
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return None if when.tzinfo is None else max(when - now, dt.timedelta())


def _origin(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", "", 0
    return parts.scheme, parts.hostname or "", port or _HTTPS_PORT
