"""The report as text: listeners and what they negotiate, then findings with evidence and remedy."""

from __future__ import annotations

import io

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.audit.model import NO_LISTENERS, Kind, ListenerReport, Outcome, Report, Result, Severity

COLOURS = {
    Severity.CRITICAL: "bold red",
    Severity.HIGH: "red",
    Severity.MEDIUM: "yellow",
    Severity.LOW: "cyan",
    Severity.INFO: "dim",
}
WIDTH = 140


def render_text(report: Report) -> str:
    """The report without colours."""
    buffer = io.StringIO()
    print_report(report, Console(file=buffer, width=WIDTH, no_color=True, highlight=False))
    return buffer.getvalue().rstrip("\n")


def print_report(report: Report, console: Console) -> None:
    """The report on ``console``."""
    console.print(f"Audit of {escape(report.subject)}, {report.started_at:%Y-%m-%d %H:%M:%S} UTC", highlight=False)
    console.print()
    console.print(_listeners(report))
    findings = report.findings()
    for result in findings:
        console.print()
        _print_finding(result, console)
    accepted = [result for result in report.results if result.accepted is not None]
    if accepted:
        console.print()
        console.print("Accepted for now:", highlight=False)
        for result in accepted:
            if result.accepted is not None:
                console.print(
                    f"  {result.check} at {escape(result.listener)}: {escape(result.accepted.reason)} "
                    f"(until {result.accepted.expires})",
                    highlight=False,
                )
    console.print()
    console.print(summary(report), highlight=False)


def summary(report: Report) -> str:
    """One line with the counts."""
    counts = {outcome: sum(result.outcome is outcome for result in report.results) for outcome in Outcome}
    accepted = sum(result.accepted is not None for result in report.results)
    findings = len(report.findings())
    told = f"{findings} finding{'' if findings == 1 else 's'}" if findings else "no finding"
    known = f" and {accepted} accepted" if accepted else ""
    listeners = sum(each.listener.kind not in NO_LISTENERS for each in report.listeners)
    away = sum(bool(each.unreachable) for each in report.listeners)
    reached = f" ({away} unreachable)" if away else ""
    places = sum(each.listener.kind is Kind.CODE for each in report.listeners)
    what = (
        f"attempts from {places} places in a job" if places else f"{listeners} listener{'' if listeners == 1 else 's'}"
    )
    return (
        f"{told}{known}: {what}{reached}, "
        f"{counts[Outcome.PASSED]} checks passed, "
        f"{counts[Outcome.NOT_EXAMINED]} not examined, {report.seconds:.1f} s"
    )


def _listeners(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("LISTENER", "WHERE", "EXPECTED", "NEGOTIATED", "POST-QUANTUM", "IDENTITY", "FINDINGS"):
        table.add_column(column, overflow="fold")
    for each in report.listeners:
        listener = each.listener
        count = sum(result.open_finding and result.listener == listener.name for result in report.results)
        table.add_row(
            escape(listener.name),
            escape(listener.place),
            str(listener.kind),
            *_negotiated(each),
            str(count) if count else "none",
        )
    return table


def _negotiated(each: ListenerReport) -> tuple[str, str, str]:
    shown = each.negotiated
    if shown is None:
        return each.spoken, "", ""
    leaf = shown.chain[0] if shown.chain else None
    identity = (leaf.spiffe_ids[0] if leaf.spiffe_ids else leaf.subject) if leaf else ""
    return (
        f"{shown.version}, {shown.suite.removeprefix('TLS_')}, {shown.group}",
        ", ".join(shown.post_quantum_groups) or "no",
        escape(identity),
    )


def _print_finding(result: Result, console: Console) -> None:
    colour = COLOURS[result.severity]
    console.print(
        f"[{colour}]{result.severity.upper()}[/] {result.check} at {escape(result.listener)} "
        f"({escape(result.place)}): {escape(result.problem or result.title)}",
        highlight=False,
    )
    rows = (
        ("done", result.done),
        ("seen", result.seen),
        ("expected", f"{result.expected} ({'; '.join(result.references)})"),
        ("remedy", result.remedy),
    )
    for label, text in rows:
        console.print(f"  {label + ':':<10}{escape(text)}", highlight=False)
