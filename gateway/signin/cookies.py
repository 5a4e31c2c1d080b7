"""The gateway's cookies: for this host only, over HTTPS only, and not sent with requests of other sites.

Source: RFC 6265bis (``__Host-`` prefix, ``SameSite``).
"""

from __future__ import annotations

from sluice.gateway.credentials import ACCESS_TOKEN_COOKIE, CSRF_COOKIE, SESSION_COOKIE

LOGIN_COOKIE = "__Host-sluice-login"
"""Binds a sign-in to the browser that began it, before there is a session."""


def set_cookie(name: str, value: str, *, max_age: float, script: bool = False) -> str:
    """A ``Set-Cookie`` value. With ``script``, the page's script may read the cookie."""
    hidden = "" if script else "; HttpOnly"
    return f"{name}={value}; Path=/; Secure; SameSite=Lax; Max-Age={max(0, int(max_age))}{hidden}"


def clear_cookie(name: str) -> str:
    """A ``Set-Cookie`` value that removes the cookie."""
    return set_cookie(name, "", max_age=0)


def session_cookies(session: str, csrf: str, *, max_age: float) -> list[str]:
    """The cookies of a browser that has signed in."""
    return [
        set_cookie(SESSION_COOKIE, session, max_age=max_age),
        set_cookie(CSRF_COOKIE, csrf, max_age=max_age, script=True),
    ]


def access_token_cookie(text: str, *, max_age: float) -> str:
    """A ``Set-Cookie`` value with an access token, which is replaced every few minutes."""
    return set_cookie(ACCESS_TOKEN_COOKIE, text, max_age=max_age)


def cleared() -> list[str]:
    """``Set-Cookie`` values that delete all cookies of a browser that has signed out."""
    return [clear_cookie(name) for name in (ACCESS_TOKEN_COOKIE, SESSION_COOKIE, CSRF_COOKIE, LOGIN_COOKIE)]
