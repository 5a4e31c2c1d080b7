"""The job's results: marked lines on its standard output, bounded and checked like all output of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from sluice.audit.insider.payload import ATTEMPTS, MARK, Outcome, Place
from sluice.core import REPLACEMENT, printable

MAX_LINE_CHARACTERS = 16 << 10
MAX_ROWS = 4096
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One attempt from one place."""

    id: Annotated[str, msgspec.Meta(max_length=32)]
    place: Place
    outcome: Outcome
    done: _Text
    seen: _Text
    seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0


def read_rows(lines: Iterable[str], nonce: str) -> tuple[tuple[Row, ...], bool]:
    """The rows of the run ``nonce``, and whether the pipeline finished.

    Lines of other runs, too long or malformed ones, and unknown attempts are ignored. Of several results of one attempt
    from one place, the worst counts: later output cannot take back a finding.
    """
    found: dict[tuple[str, Place], Row] = {}
    ended = False
    start = f"{MARK} {nonce} "
    for line in lines:
        if len(line) > MAX_LINE_CHARACTERS or not line.startswith(start):
            continue
        text = line.removeprefix(start).rstrip("\n")
        ended = ended or text == "end"
        row = _row(text)
        if row is None or len(found) >= MAX_ROWS:
            continue
        before = found.get((row.id, row.place))
        if before is None or _badness(row) > _badness(before):
            found[row.id, row.place] = row
    return tuple(found.values()), ended


def _row(text: str) -> Row | None:
    try:
        row = msgspec.json.decode(text.encode(errors="replace"), type=Row)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    attempt = ATTEMPTS.get(row.id)
    if attempt is None or row.place not in attempt.places:
        return None
    done, seen = (printable(each, REPLACEMENT) for each in (row.done, row.seen))
    return msgspec.structs.replace(row, done=done, seen=seen)


def _badness(row: Row) -> int:
    """The order of results: the worst counts, so a job cannot turn a finding or an untried attempt into a pass."""
    return [Outcome.REFUSED, Outcome.UNTRIED, Outcome.PLANTED, Outcome.REACHED].index(row.outcome)
