"""The few pages of the auth service: plain HTML without a script, everything from outside escaped."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from urllib.parse import urlencode

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:0;background:#f4f5f7;color:#1c2530}"
    "main{max-width:26rem;margin:12vh auto;padding:2rem;background:#fff;border-radius:10px;"
    "box-shadow:0 1px 4px #0003}h1{font-size:1.25rem;margin:0 0 1rem}"
    "label{display:block;margin:.75rem 0 .25rem}input{width:100%;box-sizing:border-box;font:inherit;padding:.5rem;"
    "border:1px solid #8a94a3;border-radius:6px}"
    "button,a.button{display:inline-block;margin:1rem .5rem 0 0;padding:.5rem 1rem;font:inherit;border-radius:6px;"
    "border:1px solid #175ddc;background:#175ddc;color:#fff;text-decoration:none;cursor:pointer}"
    "button.second{background:#fff;color:#175ddc}p.error{color:#b00020}code{font-size:1.5rem;letter-spacing:.1em}"
    "@media(prefers-color-scheme:dark){body{background:#14181d;color:#e6e9ee}main{background:#1e242c}"
    "input{background:#14181d;color:inherit}p.error{color:#ff8a80}button.second{background:#1e242c;color:#8ab4ff}}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def content_security_policy(*form_targets: str) -> str:
    """Nothing but our own style, forms to ourselves and to ``form_targets``, and no frame around it."""
    targets = " ".join(["'self'", *form_targets])
    return (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action {targets}; "
        "base-uri 'none'; frame-ancestors 'none'"
    )


def sign_in(*, token: str, return_to: str, provider: bool, error: str = "") -> str:
    """Name and password, and the way to the provider when there is one."""
    told = f'<p class="error" role="alert">{escape(error)}</p>' if error else ""
    query = urlencode({"with": "provider", "return_to": return_to})
    link = f'<a class="button" href="/auth/login?{escape(query)}">Sign in with your organisation</a>'
    other = link if provider else ""
    return _page(
        "Sign in",
        f'{told}<form method="post" action="/auth/login">{_hidden("token", token)}{_hidden("return_to", return_to)}'
        '<label for="name">Name</label><input id="name" name="name" autocomplete="username" required autofocus>'
        '<label for="password">Password</label>'
        '<input id="password" name="password" type="password" autocomplete="current-password" required>'
        f"<button>Sign in</button></form>{other}",
    )


def account(*, name: str, roles: tuple[str, ...], csrf: str) -> str:
    """Who one is, and the way out."""
    held = ", ".join(roles) or "no role"
    return _page(
        "Sluice",
        f"<p>You are signed in as <strong>{escape(name)}</strong> ({escape(held)}).</p>"
        f'<form method="post" action="/auth/logout">{_hidden("csrf", csrf)}'
        '<a class="button" href="/">Dashboard</a><button class="second" id="sign-out">Sign out</button></form>',
    )


def message(title: str, text: str, *, link: str = "") -> str:
    """A sentence, and perhaps a way on."""
    on = f'<a class="button" href="{escape(link)}">Sign in</a>' if link else ""
    return _page(title, f"<p>{escape(text)}</p>{on}")


def device(*, name: str, csrf: str, user_code: str = "", address: str = "", error: str = "") -> str:
    """Asks for the code that a command shows; with ``address``, whether that one is meant."""
    told = f'<p class="error" role="alert">{escape(error)}</p>' if error else ""
    if address:
        return _page(
            "Sign in a command",
            f"<p>A command at <strong>{escape(address)}</strong> asks to act as <strong>{escape(name)}</strong>. "
            f"Does it show this code?</p><p><code>{escape(user_code)}</code></p>"
            f'<form method="post" action="/auth/device/decide">{_hidden("csrf", csrf)}'
            f'{_hidden("user_code", user_code)}<button name="decision" value="approve" id="approve">Yes, sign it in'
            '</button><button class="second" name="decision" value="deny">No</button></form>',
        )
    return _page(
        "Sign in a command",
        f'{told}<form method="get" action="/auth/device"><label for="user_code">Code that the command shows</label>'
        '<input id="user_code" name="user_code" autocomplete="off" required autofocus>'
        "<button>Continue</button></form>",
    )


def _hidden(name: str, value: str) -> str:
    return f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)} - Sluice</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )
