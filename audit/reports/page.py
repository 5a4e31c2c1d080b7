"""A self-contained HTML page: the picture, the findings with their evidence, and everything that was done."""

from __future__ import annotations

from html import escape

from audit.model import ListenerReport, Report, Result
from audit.reports.picture import render_picture
from audit.reports.text import summary

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #8b949e; --soft: #f3f4f6;
  --good: #1a7f37; --bad: #cf222e; --known: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #6e7681; --soft: #161b22;
  --good: #3fb950; --bad: #f85149; --known: #d29922; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--soft); overflow-wrap: anywhere; }
article { border-left: 4px solid var(--bad); padding: .2rem 1rem; margin: 1rem 0; background: var(--soft); }
article.accepted { border-color: var(--known); } dt { font-weight: 600; } dd { margin: 0 0 .4rem 0; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.head { font-weight: 600; } svg text.place, svg text.spoken { font-size: 10px; }
svg rect { fill: var(--soft); stroke: var(--line); } svg line { stroke-width: 2; }
svg .good line { stroke: var(--good); } svg .good path { fill: var(--good); }
svg .good .listener { stroke: var(--good); }
svg .bad line { stroke: var(--bad); stroke-dasharray: 6 4; } svg .bad path { fill: var(--bad); }
svg .bad .listener { stroke: var(--bad); stroke-width: 2; }
svg .known line { stroke: var(--known); } svg .known path { fill: var(--known); }
svg .known .listener { stroke: var(--known); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(report: Report) -> str:
    """The page; it loads nothing from anywhere and runs no script."""
    accepted = [result for result in report.results if result.accepted is not None]
    findings = [*map(_finding, report.findings()), *map(_finding, accepted)]
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>Audit of {escape(report.subject)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>Audit of {escape(report.subject)}</h1>",
            f"<p>{report.started_at:%Y-%m-%d %H:%M:%S} UTC: {escape(summary(report))}.</p>",
            "<h2>Channels</h2>",
            render_picture(report),
            "<h2>Findings</h2>",
            *(findings or ["<p>None.</p>"]),
            "<h2>What is negotiated</h2>",
            _table(
                ("listener", "version, suite, group", "groups taken", "signature", "certificate", "valid until"),
                [_negotiated(each) for each in report.listeners if each.negotiated],
            ),
            "<h2>Everything that was done</h2>",
            _table(
                ("check", "listener", "outcome", "done", "seen"),
                [(f"{r.check} {r.title}", r.listener, str(r.outcome), r.done, r.seen) for r in report.results],
            ),
            "</body></html>",
        ]
    )


def _finding(result: Result) -> str:
    known = result.accepted
    rows = [
        ("done", result.done),
        ("seen", result.seen),
        ("expected", f"{result.expected} ({'; '.join(result.references)})"),
        ("remedy", result.remedy),
        *([("accepted", f"{known.reason} (until {known.expires})")] if known else []),
    ]
    told = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in rows)
    kind = ' class="accepted"' if known else ""
    return (
        f"<article{kind}><h3>{escape(result.severity)}: {escape(result.check)} at {escape(result.listener)}</h3>"
        f"<p>Not so: {escape(result.title)} ({escape(result.place)})</p><dl>{told}</dl></article>"
    )


def _negotiated(each: ListenerReport) -> tuple[str, ...]:
    shown = each.negotiated
    if shown is None:
        return (each.listener.name,)
    leaf = shown.chain[0] if shown.chain else None
    return (
        each.listener.name,
        f"{shown.version}, {shown.suite}, {shown.group}",
        ", ".join(shown.groups),
        shown.signature,
        f"{', '.join(leaf.spiffe_ids) or leaf.subject}: {leaf.key}" if leaf else "",
        f"{leaf.not_after:%Y-%m-%d %H:%M}" if leaf else "",
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
