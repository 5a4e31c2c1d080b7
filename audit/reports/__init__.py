"""The report in each format: for people, scripts, test dashboards and code scanning."""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from sluice.audit.model import Report
from sluice.audit.reports.junit import render_junit
from sluice.audit.reports.page import render_page
from sluice.audit.reports.sarif import render_sarif
from sluice.audit.reports.text import print_report as print_report, render_text as render_text


class Format(enum.StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"
    SARIF = "sarif"
    HTML = "html"


def render_json(report: Report) -> str:
    """The whole report; :func:`json_schema` describes it."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def json_schema() -> str:
    """The JSON schema of :func:`render_json`, made from the types themselves."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Report)), indent=2).decode()


RENDERERS: dict[Format, Callable[[Report], str]] = {
    Format.TEXT: render_text,
    Format.JSON: render_json,
    Format.JUNIT: render_junit,
    Format.SARIF: render_sarif,
    Format.HTML: render_page,
}
