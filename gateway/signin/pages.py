"""The few pages of signing in: without a script, everything from outside escaped."""

from __future__ import annotations

from sluice.core.pages import Pages
from sluice.gateway.templates import TEMPLATES

_PAGES = Pages(TEMPLATES)


def content_security_policy(*form_targets: str) -> str:
    """Nothing but our own style, forms to ourselves and to ``form_targets``, and no frame around it."""
    targets = " ".join(["'self'", *form_targets])
    return (
        f"default-src 'none'; style-src 'self'; img-src 'self'; form-action {targets}; "
        "base-uri 'none'; frame-ancestors 'none'"
    )


def sign_in(*, token: str, return_to: str, provider: bool, users: bool, error: str = "") -> str:
    """The ways in: the provider and name and password where there are such, and an API token."""
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
    """A sentence, and perhaps a way on."""
    return _PAGES.render("message.html", title=title, error="", text=text, link=link)


def device(*, name: str, csrf: str, user_code: str = "", address: str = "", error: str = "") -> str:
    """Asks for the code that a command shows; with ``address``, whether that one is meant."""
    return _PAGES.render(
        "device.html",
        title="Sign in a command",
        error=error,
        name=name,
        csrf=csrf,
        user_code=user_code,
        address=address,
    )
