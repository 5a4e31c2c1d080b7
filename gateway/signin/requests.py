"""Requests under ``/auth/``, decoded and bounded in size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from aiohttp import hdrs, web

from sluice.core import BodyTooLarge, read_body
from sluice.gateway.authn import HEADER as CERTIFICATE_HEADER, PresentedCredentials, parse_cookies
from sluice.gateway.authz import UnsafePath, split_target
from sluice.gateway.credentials import CSRF_HEADER, SAFE_METHODS
from sluice.gateway.signin.pending_requests import TooManyPending

MAX_FORM_BYTES = 16 << 10
MAX_FIELDS = 20
MAX_LOGGED_CHARACTERS = 128


class Refused(Exception):
    """The request is refused with a problem document; ``reason`` is for the log, ``detail`` for the caller."""

    def __init__(self, status: int, reason: str, detail: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.detail = detail or reason
        self.headers = dict(headers or {})


def too_many(error: TooManyPending, detail: str) -> Refused:
    """The refusal when too many sign-ins are pending."""
    return Refused(429, str(error), f"{detail} Wait a little.", {"Retry-After": str(math.ceil(error.retry_after))})


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """A request to the auth service itself."""

    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    presented: PresentedCredentials
    csrf: tuple[str, ...]
    cookies: Mapping[str, str]
    headers: Mapping[str, str]
    address: str
    request_id: str


@dataclass(slots=True)
class AuditNote:
    """The facts that the audit log records about one request."""

    operation: str
    reason: str = ""
    principal: str = ""
    credential: str = ""


async def read(http: web.BaseRequest) -> AuthRequest:
    """Read and decode a request of bounded size; raises :class:`Refused`."""
    form: Mapping[str, str] = {}
    if http.method not in SAFE_METHODS:
        try:
            body = await read_body(http.content, MAX_FORM_BYTES)
        except BodyTooLarge as error:
            raise Refused(413, "the form is too large") from error
        if body and http.content_type != "application/x-www-form-urlencoded":
            raise Refused(415, "not a form", "Send application/x-www-form-urlencoded.")
        form = _fields(body.decode("latin-1"))
    path, _, query = http.raw_path.partition("?")
    return AuthRequest(
        method=http.method,
        path=path,
        query=_fields(query),
        form=form,
        presented=presented(http),
        csrf=tuple(http.headers.getall(CSRF_HEADER, ())),
        cookies=parse_cookies(tuple(http.headers.getall(hdrs.COOKIE, ()))),
        headers=http.headers,
        address=http.headers.get("x-forwarded-for", "")[:MAX_LOGGED_CHARACTERS],
        request_id=http.headers.get("x-request-id", "")[:MAX_LOGGED_CHARACTERS],
    )


def presented(http: web.BaseRequest) -> PresentedCredentials:
    """The credentials in a request's headers."""
    return PresentedCredentials(
        tuple(http.headers.getall(hdrs.AUTHORIZATION, ())),
        tuple(http.headers.getall(hdrs.COOKIE, ())),
        tuple(http.headers.getall(CERTIFICATE_HEADER, ())),
    )


def check_origin(request: AuthRequest) -> None:
    """Refuse an unsafe request that comes from another site, according to the browser (Fetch Metadata, ``Origin``)."""
    if request.method in SAFE_METHODS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    # Sec-Fetch-Site is exact; Origin is "null" when the referrer is withheld. Older browsers send only Origin, which
    # is compared without the port, because Envoy removes the port from Host.
    own = not origin or _host(origin) == _host(f"//{request.headers.get('host', '')}")
    if not (own if site is None else site in {"same-origin", "none"}):
        raise Refused(403, "a request from another site", "Requests from other sites are refused.")


def return_path(text: str) -> str:
    """The path of this gateway to go to after sign-in. Any other target becomes its root (no open redirect)."""
    try:
        split_target(text)
    except UnsafePath:
        return "/"
    return text


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _fields(text: str) -> Mapping[str, str]:
    """The fields of a form or a query; raises :class:`Refused` when a field occurs twice."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise Refused(400, "the form cannot be read") from error
    if len({name for name, _ in pairs}) != len(pairs):
        raise Refused(400, "the form has a field twice")
    return dict(pairs)
