"""Errors for people: a page with the look of all others, for who accepts HTML and shows no token of a program."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from sluice.core.pages import CONTENT_SECURITY_POLICY, HTML, Pages
from sluice.gateway.templates import TEMPLATES

POLICY_HEADER = "content-security-policy"
POLICY = CONTENT_SECURITY_POLICY

_PAGES = Pages(TEMPLATES)


def wants_page(headers: Mapping[str, str]) -> bool:
    """Whether the sender of ``headers`` (names in lower case, or a mapping that ignores case) gets a page.

    A request with ``Authorization`` is a program's, even when its library accepts everything: Java's sends
    ``text/html`` by itself.
    """
    return HTML in headers.get("accept", "") and "authorization" not in headers


def problem_page(status: int, detail: str = "") -> str:
    """The page; ``detail`` is a sentence."""
    title = HTTPStatus(status).phrase
    return _PAGES.render("refused.html", title=title, error="", status=status, text=detail or f"{title}.")
