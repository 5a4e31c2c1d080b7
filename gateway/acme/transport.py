"""HTTPS transport for the ACME library: one origin, verified TLS, no redirects, limits on size and time.

The server belongs to a third party, and its directory could name any URL. Requests signed with the account key go only
to the origin of the directory.
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
"""A certificate chain or a directory takes tens of kilobytes."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
"""Longest pause within an answer."""
ANSWER_SECONDS = 60.0
"""How long a whole answer may take."""
MAX_REQUESTS = 300
"""Limit for one order. An order with the maximum number of names and slow polling needs fewer."""
_HTTPS_PORT = 443


class BoundedTransport(HTTPAdapter):
    """Transport adapter for all URLs of a session.

    Attributes:
        retry_after: the delay that the last answer asked for, counted from its arrival; None if it asked for none.
    """

    def __init__(self, directory: str, context: ssl.SSLContext, clock: Callable[[], dt.datetime]) -> None:
        self._origin = _origin(directory)
        self._context = context
        self._clock = clock
        self._left = MAX_REQUESTS
        self.retry_after: dt.timedelta | None = None
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  the library's signature
        """Use our TLS context."""
        super().init_poolmanager(*arguments, **named, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: str, verify: object, cert: object) -> None:  # noqa: ANN401  likewise
        """Leave verification to the TLS context: the library would add its own CAs to the configured ones."""
        del url, verify, cert
        conn.cert_reqs = "CERT_REQUIRED"

    def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
        """Send the request. Raises :class:`AcmeError` for another origin, a redirect or too many requests."""
        url = request.url or ""
        # 1. The server may name any URL.
        if _origin(url) != self._origin:
            raise AcmeError(
                f"the ACME server refers to {url[:200]!r}, which is not at https://{self._origin[1]}:{self._origin[2]}",
                "check gateway.acme.directory; a server with URLs at other origins is not supported",
            )
        self._left -= 1
        if self._left < 0:
            raise AcmeError(f"the ACME server wants more than {MAX_REQUESTS} requests for one certificate")
        # 2. No compression: a small answer could decompress to a huge one.
        request.headers["Accept-Encoding"] = "identity"
        response = super().send(request, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS))
        if response.is_redirect or response.is_permanent_redirect:
            response.close()
            raise AcmeError(
                f"the ACME server redirects {url[:200]!r}",
                "set gateway.acme.directory to the URL that it redirects to",
            )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            raise AcmeError("the ACME server sent a compressed answer, which was not requested")
        self.retry_after = retry_after(response.headers, self._clock())
        response.raw = _BoundedBody(response.raw, time.monotonic() + ANSWER_SECONDS)
        return response


class _BoundedBody:
    """The body object that ``requests`` reads from."""

    def __init__(self, body: BaseHTTPResponse, deadline: float) -> None:
        self._body = body
        self._deadline = deadline
        self._left = MAX_ANSWER_BYTES

    def stream(self, amount: int, decode_content: bool = True) -> Iterator[bytes]:
        """The body in chunks. Raises :class:`AcmeError` if it is too large or too slow."""
        del decode_content
        for chunk in self._body.stream(amount, decode_content=False):
            self._left -= len(chunk)
            if self._left < 0:
                raise AcmeError(f"the ACME server sent an answer of more than {MAX_ANSWER_BYTES} bytes")
            if time.monotonic() > self._deadline:
                raise AcmeError(f"an answer of the ACME server took longer than {ANSWER_SECONDS:.0f} s")
            yield chunk

    def close(self) -> None:
        """Close the connection."""
        self._body.close()

    def release_conn(self) -> None:
        """Return the connection to the pool."""
        self._body.release_conn()


def tls_context(ca_file: str) -> ssl.SSLContext:
    """A context that trusts only ``ca_file``, or the system's CAs if it is empty. Host names are checked."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise StoreError(f"cannot use gateway.acme.ca_file {ca_file}: {error}", "set it to a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def retry_after(headers: Mapping[str, str], now: dt.datetime) -> dt.timedelta | None:
    """The Retry-After header (RFC 9110, 10.2.3) as a delay from ``now``; None if it is missing or invalid."""
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
