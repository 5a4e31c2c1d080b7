"""Error pages in the common design, for callers that accept HTML and send no ``Authorization`` header."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from sluice.core.pages import CONTENT_SECURITY_POLICY, HTML, Pages
from sluice.gateway.templates import TEMPLATES

POLICY_HEADER = "content-security-policy"
POLICY = CONTENT_SECURITY_POLICY

_PAGES = Pages(TEMPLATES)


def wants_page(headers: Mapping[str, str]) -> bool:
    """Whether the sender of ``headers`` (names in lower case, or a case-insensitive mapping) gets an HTML page.

    A request with ``Authorization`` comes from a program, even when it accepts HTML: Java's HTTP client sends
    ``text/html`` by default.
    """
    return HTML in headers.get("accept", "") and "authorization" not in headers


def problem_page(status: int, detail: str = "") -> str:
    """The error page as HTML; ``detail`` is a sentence."""
    title = HTTPStatus(status).phrase
    return _PAGES.render("refused.html", title=title, error="", status=status, text=detail or f"{title}.")
