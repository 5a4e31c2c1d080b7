"""Responses to requests under ``/auth/``, with common security headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiohttp import hdrs, web

from sluice.gateway.signin import pages
from sluice.gateway.signin.cookies import cleared

_SECURITY_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def answer(
    status: int,
    body: bytes,
    content_type: str,
    *,
    headers: Mapping[str, str] | None = None,
    cookies: Iterable[str] = (),
) -> web.Response:
    """A response with the common security headers."""
    response = web.Response(
        status=status, body=body, headers={**_SECURITY_HEADERS, **(headers or {})}, content_type=content_type
    )
    for cookie in cookies:
        response.headers.add(hdrs.SET_COOKIE, cookie)
    return response


def page(
    html: str, *, status: int = 200, cookies: Iterable[str] = (), form_targets: Iterable[str] = ()
) -> web.Response:
    """A response with an HTML page."""
    policy = {"content-security-policy": pages.content_security_policy(*form_targets)}
    response = answer(status, html.encode(), "text/html", headers=policy, cookies=cookies)
    response.charset = "utf-8"
    return response


def redirect(location: str, *, cookies: Iterable[str] = ()) -> web.Response:
    """A redirect that the client follows with GET (RFC 9110 section 15.4.4)."""
    return answer(303, b"", "text/plain", headers={"location": location}, cookies=cookies)


def signed_out(location: str) -> web.Response:
    """A redirect that also deletes all cookies of the gateway."""
    return redirect(location, cookies=cleared())
