"""A self-contained HTML page: the picture of the cluster, the findings with their evidence, and all checks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sluice.audit.model import Kind, ListenerReport, Outcome, Report, Result
from sluice.audit.reports.picture import render_picture
from sluice.audit.reports.text import summary

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #8b949e; --soft: #f3f4f6;
  --good: #1a7f37; --bad: #cf222e; --known: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #6e7681; --soft: #161b22;
  --good: #3fb950; --bad: #f85149; --known: #d29922; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--soft); overflow-wrap: anywhere; }
th { white-space: nowrap; } td { font-size: .92em; }
article { border-left: 4px solid var(--bad); padding: .1rem 1rem; margin: 1rem 0; background: var(--soft); }
article.accepted { border-color: var(--known); } h3 { margin: .6rem 0 .3rem; font-size: 1.05rem; }
h3 b { color: var(--bad); text-transform: uppercase; font-size: .8em; letter-spacing: .04em; margin-right: .5em; }
article.accepted h3 b { color: var(--known); }
dl { display: grid; grid-template-columns: 6.5rem 1fr; gap: .15rem .8rem; margin: .3rem 0 .6rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; min-width: 0; } dd small { opacity: .75; }
summary { cursor: pointer; margin: .6rem 0; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.head { font-weight: 600; } svg text.place, svg text.spoken, svg text.many { font-size: 10px; }
svg rect { fill: var(--soft); stroke: var(--line); } svg line { stroke-width: 2; }
svg .good line { stroke: var(--good); } svg .good path { fill: var(--good); }
svg .good .listener { stroke: var(--good); }
svg .bad line { stroke: var(--bad); stroke-dasharray: 6 4; } svg .bad path { fill: var(--bad); }
svg .bad .listener { stroke: var(--bad); stroke-width: 2; }
svg .unreachable line { stroke: var(--line); stroke-dasharray: 2 5; } svg .unreachable path { fill: none; }
svg .unreachable .listener { stroke: var(--bad); stroke-dasharray: 2 5; }
svg .known line { stroke: var(--known); } svg .known path { fill: var(--known); }
svg .known .listener { stroke: var(--known); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(report: Report) -> str:
    """Render the page, which loads nothing and runs no script."""
    accepted = [result for result in report.results if result.accepted is not None]
    findings = [*map(_finding, _alike(report.findings())), *map(_finding, _alike(accepted))]
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>Audit of {escape(report.subject)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>Audit of {escape(report.subject)}</h1>",
            f"<p>{report.started_at:%Y-%m-%d %H:%M:%S} UTC: {escape(summary(report))}.</p>",
            *_channels(report),
            "<h2>Findings</h2>",
            *(findings or ["<p>None.</p>"]),
            *_what_is_negotiated(report),
            "<h2>Everything that was done</h2>",
            *(_results(report, outcome) for outcome in (Outcome.FINDING, Outcome.PASSED, Outcome.NOT_EXAMINED)),
            "</body></html>",
        ]
    )


def _channels(report: Report) -> list[str]:
    """The picture of the channels; empty for a report that is not about listeners."""
    if all(each.listener.kind is Kind.CODE for each in report.listeners):
        return []
    return ["<h2>Channels</h2>", render_picture(report)]


def _what_is_negotiated(report: Report) -> list[str]:
    if all(each.listener.kind is Kind.CODE for each in report.listeners):
        return []
    head = ("listener", "version, suite, group", "groups taken", "signature", "certificate", "valid until")
    rows = [_negotiated(each) for each in report.listeners if each.negotiated or each.unreachable]
    return ["<h2>What is negotiated</h2>", _table(head, rows)]


def _alike(results: Sequence[Result]) -> list[list[Result]]:
    """Group equal findings at several listeners; keeps the order."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        reason = result.accepted.reason if result.accepted else ""
        groups.setdefault((result.check, reason), []).append(result)
    return list(groups.values())


def _finding(results: list[Result]) -> str:
    first = results[0]
    known = first.accepted
    rows = [("done", escape(first.done))]
    rows += [("seen", f"<strong>{escape(r.listener)}</strong> ({escape(r.place)}): {escape(r.seen)}") for r in results]
    rows += [
        ("expected", f"{escape(first.expected)} <small>({escape('; '.join(first.references))})</small>"),
        ("remedy", escape(first.remedy)),
        *([("accepted", escape(f"{known.reason} (until {known.expires})"))] if known else []),
    ]
    told = "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in rows)
    kind = ' class="accepted"' if known else ""
    return (
        f"<article{kind}><h3><b>{escape(first.severity)}</b>{escape(first.check)}: "
        f"{escape(first.problem or first.title)}</h3>"
        f"<dl>{told}</dl></article>"
    )


def _results(report: Report, outcome: Outcome) -> str:
    """One fold for each outcome; only findings are open at first."""
    rows = [
        (f"{result.check} {result.title}", result.listener, result.done, result.seen)
        for result in report.results
        if result.outcome is outcome
    ]
    if not rows:
        return ""
    opened = " open" if outcome is Outcome.FINDING else ""
    label = {Outcome.FINDING: "findings", Outcome.PASSED: "passed"}.get(outcome, str(outcome))
    table = _table(("check", "listener", "done", "seen"), rows)
    return f"<details{opened}><summary>{len(rows)} {label}</summary>{table}</details>"


def _negotiated(each: ListenerReport) -> tuple[str, ...]:
    shown = each.negotiated
    if shown is None:
        return (each.listener.name, each.spoken, "", "", "", "")
    leaf = shown.chain[0] if shown.chain else None
    return (
        each.listener.name,
        f"{shown.version}, {shown.suite}, {shown.group}",
        ", ".join(shown.groups),
        shown.signature,
        f"{', '.join(leaf.spiffe_ids) or leaf.subject}: {leaf.key}" if leaf else "",
        f"{leaf.not_after:%Y-%m-%d %H:%M}" if leaf else "",
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
