"""Keeps the summary of the last audit in the examined home, for the dashboard."""

from __future__ import annotations

from collections import Counter

import msgspec

from sluice.audit import Report
from sluice.core import Home, make_private_directory, write_secret
from sluice.runtime.rest import AuditSummary, Examined, summary_file


def keep_summary(home: Home, report: Report) -> None:
    """Write the summary of ``report`` into the home of its cluster."""
    path = summary_file(home)
    make_private_directory(path.parent)
    write_secret(path, msgspec.json.encode(summary_of(report)))


def summary_of(report: Report) -> AuditSummary:
    """The summary of ``report``: what each listener negotiates, and the number of findings."""
    findings = report.findings()
    by_listener = Counter(result.listener for result in findings)
    return AuditSummary(
        at=report.started_at.timestamp() + report.seconds,
        checks=len(report.results),
        findings=dict(Counter(str(result.severity) for result in findings)),
        listeners=tuple(
            Examined(
                name=each.listener.name,
                channel="" if each.listener.channel is None else str(each.listener.channel),
                process=each.listener.process,
                version="" if each.negotiated is None else each.negotiated.version,
                suite="" if each.negotiated is None else each.negotiated.suite,
                group="" if each.negotiated is None else each.negotiated.group,
                findings=by_listener[each.listener.name],
            )
            for each in report.listeners
        ),
    )
