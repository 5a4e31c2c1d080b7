"""A report in each format that somebody reads: people, scripts, test dashboards, code scanning."""

from __future__ import annotations

import enum
from collections.abc import Callable

from audit.model import Report
from audit.reports.text import render_text


class Format(enum.StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"


def _json(report: Report) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


RENDERERS: dict[Format, Callable[[Report], str]] = {
    Format.TEXT: render_text,
    Format.JSON: _json,
}
