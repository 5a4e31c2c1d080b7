"""The sign-in pages: without scripts, with all external text escaped."""

from __future__ import annotations

from sluice.core.pages import Pages
from sluice.gateway.templates import TEMPLATES

_PAGES = Pages(TEMPLATES)


def content_security_policy(*form_targets: str) -> str:
    """A policy that allows only our own styles and images, forms to us and to ``form_targets``, and no framing."""
    targets = " ".join(["'self'", *form_targets])
    return (
        f"default-src 'none'; style-src 'self'; img-src 'self'; form-action {targets}; "
        "base-uri 'none'; frame-ancestors 'none'"
    )


def sign_in(*, token: str, return_to: str, provider: bool, users: bool, error: str = "") -> str:
    """The sign-in page: API token, and identity provider or name and password when available."""
    return _PAGES.render(
        "sign_in.html",
        title="Sign in",
        token=token,
        return_to=return_to,
        provider=provider,
        users=users,
        error=error,
    )


def account(*, name: str, roles: tuple[str, ...], csrf: str) -> str:
    """The page of the signed-in user, with the sign-out button."""
    return _PAGES.render("account.html", title="Account", error="", name=name, roles=roles, csrf=csrf)


def message(title: str, text: str, *, link: str = "") -> str:
    """A page with a sentence, and optionally a link."""
    return _PAGES.render("message.html", title=title, error="", text=text, link=link)


def device(*, name: str, csrf: str, user_code: str = "", address: str = "", error: str = "") -> str:
    """A page that asks for the code of a command; with ``address``, it asks to approve that command."""
    return _PAGES.render(
        "device.html",
        title="Sign in a command",
        error=error,
        name=name,
        csrf=csrf,
        user_code=user_code,
        address=address,
    )
