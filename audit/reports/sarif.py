"""SARIF 2.1.0 (OASIS), for code scanning services: a rule for each check, a result for each finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sluice.audit.catalogue import CHECKS as OUTSIDE
from sluice.audit.check import Check
from sluice.audit.insider import CHECKS as INSIDE, Place
from sluice.audit.model import Kind, Outcome, Report, Result, Severity

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
    Severity.INFO: "note",
}
_SCORES = {
    Severity.CRITICAL: "9.5",
    Severity.HIGH: "8.0",
    Severity.MEDIUM: "5.5",
    Severity.LOW: "3.0",
    Severity.INFO: "0.0",
}


def render_sarif(report: Report) -> str:
    """The findings; accepted ones as suppressed."""
    foreign = next((each.listener for each in report.listeners if each.listener.foreign), None)
    ours = not foreign or not all(each.listener.foreign for each in report.listeners)
    catalogue = _catalogue(report)
    rules = [_rule(check if ours or foreign is None else check.on(foreign)) for check in catalogue]
    numbers = {check.id: number for number, check in enumerate(catalogue)}
    found = [result for result in report.results if result.outcome is Outcome.FINDING]
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "sluice audit", "rules": rules}},
                "invocations": [
                    {"executionSuccessful": True, "startTimeUtc": f"{report.started_at:%Y-%m-%dT%H:%M:%SZ}"}
                ],
                "results": [_result(result, numbers[result.check]) for result in found],
            }
        ],
    }
    return json.dumps(document, indent=2)


def _rule(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "name": "".join(word.capitalize() for word in check.title.replace("-", " ").split() if word.isalnum()),
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": f"Expected: {check.expected}. Sources: {'; '.join(check.references)}."},
        "help": {"text": check.remedy},
        "defaultConfiguration": {"level": _LEVELS[check.severity]},
        "properties": {
            "security-severity": _SCORES[check.severity],
            "tags": ["security", "isolation" if Kind.CODE in check.kinds else "tls"],
        },
    }


def _catalogue(report: Report) -> tuple[Check, ...]:
    """The checks that the report may contain."""
    inside = [each.listener.kind is Kind.CODE for each in report.listeners]
    return (*(() if inside and all(inside) else OUTSIDE), *(INSIDE if any(inside) else ()))


def _uri(result: Result) -> str:
    if result.listener in set(Place):
        return f"job:{result.listener}"
    return Path(result.place).as_uri() if result.place.startswith("/") else f"tcp://{result.place}"


def _result(result: Result, rule: int) -> dict[str, Any]:
    place = _uri(result)
    document: dict[str, Any] = {
        "ruleId": result.check,
        "ruleIndex": rule,
        "level": _LEVELS[result.severity],
        "message": {
            "text": f"{result.listener}: {result.problem or result.title}. Seen: {result.seen}. Done: {result.done}. "
            f"Remedy: {result.remedy}"
        },
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": place}},
                "logicalLocations": [{"name": result.listener, "kind": "resource"}],
            }
        ],
        "partialFingerprints": {"checkAndListener/v1": f"{result.check}/{result.listener}"},
    }
    if result.accepted is not None:
        document["suppressions"] = [
            {
                "kind": "external",
                "status": "accepted",
                "justification": f"{result.accepted.reason} (until {result.accepted.expires})",
            }
        ]
    return document
