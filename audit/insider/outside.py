"""Checks from outside after the job has ended: the effects of what it left or requested."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.audit.insider.payload import Place
from sluice.audit.insider.results import Row
from sluice.audit.model import Evidence, finding, not_examined, passed

_READERS = frozenset({"LNK-01", "LNK-02", "LNK-03", "LNK-04", "LNK-05", "LNK-06"})
_REMOVERS = frozenset({"LNK-08", "LNK-09"})


@dataclass(frozen=True, slots=True)
class Seen:
    """The observations from outside.

    Attributes:
        read: how many logs and documents of the job were read through the gateway.
        leaked: those that contain the canary's content.
        hung: those without an answer in time.
        canary_gone: whether a file of the audit was removed.
        left: paths that the job left and nobody removed; None when the audit cannot check.
        running: places whose process still runs; None when the audit cannot check.
        lost: what the other job has lost; None when there is no other job, or it had ended by itself.
        heard: attempts, and from where, whose mark has come out of the job; None when the audit does not listen.
    """

    read: int = 0
    leaked: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    canary_gone: bool = False
    left: tuple[str, ...] | None = None
    running: frozenset[Place] | None = None
    lost: tuple[str, ...] | None = None
    heard: frozenset[tuple[str, Place]] | None = None


def judge(row: Row, seen: Seen) -> Evidence:  # noqa: PLR0911  a line for each kind
    """Judge the effect of something that the job left."""
    if row.id in _READERS:
        return _read(row, seen)
    if row.id == "LNK-07":
        done = f"{row.done}; then looked at that directory when the job had ended"
        return finding(done, "it was removed") if seen.canary_gone else passed(done, "nothing in it was removed")
    if row.id in _REMOVERS:
        return _removed(row, seen)
    if row.id == "USE-07":
        return _ended(row, seen)
    if row.id == "SHR-01":
        return _robbed(row, seen)
    if row.id.startswith("EGR-"):
        return _left(row, seen)
    return not_examined(f"{row.done}: nobody looked at it from outside")


def _read(row: Row, seen: Seen) -> Evidence:
    done = f"{row.done}; then read {seen.read} logs and documents of the job through the gateway"
    if seen.leaked:
        return finding(done, f"the content of a file outside came back in {', '.join(seen.leaked)}")
    if seen.hung:
        return finding(done, f"no answer in time to {', '.join(seen.hung)}")
    return passed(done, "no content of another file, and every answer in time")


def _removed(row: Row, seen: Seen) -> Evidence:
    if seen.left is None:
        return not_examined("the audit does not run beside the cluster and cannot look")
    done = f"{row.done}; then looked for it when the job had ended"
    return finding(done, f"still there: {', '.join(seen.left[:2])}") if seen.left else passed(done, "it was removed")


def _ended(row: Row, seen: Seen) -> Evidence:
    if seen.running is None:
        return not_examined("the audit does not run beside the cluster and cannot look")
    done = f"{row.done}; then looked for it when the job had ended"
    return finding(done, "it still ran") if row.place in seen.running else passed(done, "it had ended, too")


def _left(row: Row, seen: Seen) -> Evidence:
    if seen.heard is None:
        return not_examined("the audit does not run beside the cluster and cannot listen")
    done = f"{row.done}, and {row.seen}; then asked the outlet"
    heard = (row.id, row.place) in seen.heard
    return finding(done, "it has heard the job") if heard else passed(done, "it has heard nothing")


def _robbed(row: Row, seen: Seen) -> Evidence:
    if seen.lost is None:
        return not_examined("there is no other job, or it had ended by itself")
    done = f"{row.done}, and {row.seen}; then looked at the other job"
    return finding(done, ", ".join(seen.lost)[:300]) if seen.lost else passed(done, "it had all that it held before")
