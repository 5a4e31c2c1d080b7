"""Error bodies in one format: ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

CONTENT_TYPE = "application/problem+json"


def problem(status: int, detail: str = "") -> dict[str, object]:
    """The members of a problem document; ``type`` is about:blank, so ``title`` is the reason phrase of the status."""
    members: dict[str, object] = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    if detail:
        members["detail"] = detail
    return members


def problem_body(status: int, detail: str = "") -> bytes:
    """The document as bytes."""
    return msgspec.json.encode(problem(status, detail))
