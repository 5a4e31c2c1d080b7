"""The cluster as an SVG: which roles may connect to which, and the state of each channel."""

from __future__ import annotations

import textwrap
from html import escape

from sluice.audit.model import NO_LISTENERS, Kind, ListenerReport, Report
from sluice.pki import MAY_CONNECT

ROW = 46
TOP = 34
LEFT_WIDTH = 290
ARROW_END = 570
WIDTH = 920
WHO_CHARACTERS, SMALL_WHO_CHARACTERS = 40, 52
_SVG = "http://www.w3.org/2000/svg"
MAX_LABEL_CHARACTERS = 44

_ANYONE = {
    Kind.SERVER: "anyone, then asked for a credential",
    Kind.LOCAL: "this machine",
    Kind.SOCKET: "the cluster's own user",
    Kind.HTTP: "anyone",
    Kind.CHALLENGES: "an ACME server",
    Kind.UNDECLARED: "nobody declared it",
}


def render_picture(report: Report) -> str:
    """One row for each listener: its clients, an arrow with the protocol, and the listener."""
    rows = [each for each in report.listeners if each.listener.kind not in NO_LISTENERS]
    height = TOP + ROW * len(rows) + 10
    parts = [
        f'<svg xmlns="{_SVG}" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Listeners and their state">',
        '<text class="head" x="10" y="18">who may connect</text>',
        f'<text class="head" x="{LEFT_WIDTH + 30}" y="18">what is spoken</text>',
        f'<text class="head" x="{ARROW_END + 10}" y="18">listener</text>',
    ]
    parts += [_row(each, TOP + ROW * number, _state(report, each)) for number, each in enumerate(rows)]
    return "\n".join([*parts, "</svg>"])


def _row(each: ListenerReport, top: int, state: str) -> str:
    listener = each.listener
    middle = top + 18
    title = f"{listener.name} at {listener.place}: {_STATES[state]}"
    return (
        f'<g class="{state}"><title>{escape(title)}</title>'
        f'<rect class="who" x="2" y="{top}" width="{LEFT_WIDTH}" height="36" rx="6"/>'
        f"{_label(_who(each), middle)}"
        f'<line x1="{LEFT_WIDTH + 4}" y1="{middle}" x2="{ARROW_END - 10}" y2="{middle}"/>'
        f'<path d="M{ARROW_END - 10} {middle - 5} L{ARROW_END} {middle} L{ARROW_END - 10} {middle + 5} Z"/>'
        f'<text class="spoken" x="{LEFT_WIDTH + 14}" y="{middle - 6}">{_short(_spoken(each))}</text>'
        f'<rect class="listener" x="{ARROW_END + 4}" y="{top}" width="{WIDTH - ARROW_END - 8}" height="36" rx="6"/>'
        f'<text x="{ARROW_END + 14}" y="{middle - 2}">{_short(listener.name)}</text>'
        f'<text class="place" x="{ARROW_END + 14}" y="{middle + 12}">{_short(listener.place[-52:], 52)}</text></g>'
    )


def _label(who: str, middle: int) -> str:
    """A label on one line, or on two in small type."""
    if len(who) <= WHO_CHARACTERS:
        return f'<text x="12" y="{middle + 4}">{escape(who)}</text>'
    first, *rest = textwrap.wrap(who, SMALL_WHO_CHARACTERS)
    second = _short(" ".join(rest), SMALL_WHO_CHARACTERS)
    return (
        f'<text class="many" x="12" y="{middle - 3}">{escape(first)}</text>'
        f'<text class="many" x="12" y="{middle + 11}">{second}</text>'
    )


_STATES = {
    "good": "no finding",
    "bad": "findings",
    "known": "accepted findings only",
    "unreachable": "unreachable, not examined",
}


def _state(report: Report, each: ListenerReport) -> str:
    results = [result for result in report.results if result.listener == each.listener.name]
    if each.unreachable:
        return "unreachable"
    if any(result.open_finding for result in results):
        return "bad"
    return "known" if any(result.accepted for result in results) else "good"


def _who(each: ListenerReport) -> str:
    listener = each.listener
    if listener.kind is Kind.MUTUAL and listener.channel is not None:
        of_job = " of its job" if listener.job_id else ""
        return ", ".join(sorted(MAY_CONNECT[listener.channel])) + of_job
    return _ANYONE.get(listener.kind, "holders of a certificate")


def _spoken(each: ListenerReport) -> str:
    shown = each.negotiated
    if shown is None:
        return each.spoken
    mutual = "mutual " if shown.client_certificate_requested else ""
    group = ", post-quantum" if shown.post_quantum_groups else ""
    return ", ".join(filter(None, (f"{mutual}{shown.version}", f"{shown.group}{group}")))


def _short(text: str, limit: int = MAX_LABEL_CHARACTERS) -> str:
    return escape(text if len(text) <= limit else text[: limit - 1] + "…")
