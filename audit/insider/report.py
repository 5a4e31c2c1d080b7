"""The report on what a job reached: a listener for each place where a job's code runs, a result for each attempt."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from sluice.audit.insider.catalogue import CHECKS
from sluice.audit.insider.outside import Seen, judge
from sluice.audit.insider.payload import ATTEMPTS, Outcome as Tried, Place
from sluice.audit.insider.results import Row
from sluice.audit.model import Evidence, Kind, Listener, ListenerReport, Outcome, Report, finding, not_examined
from sluice.audit.runner import result_of

NAMES = {
    Place.DRIVER: "driver's Python",
    Place.UDF: "Python worker of an executor",
    Place.DRIVER_JVM: "driver's JVM",
    Place.EXECUTOR_JVM: "JVM of an executor",
}
_OUTCOMES = {Tried.REACHED: Outcome.FINDING, Tried.REFUSED: Outcome.PASSED, Tried.UNTRIED: Outcome.NOT_EXAMINED}


def report_of(
    subject: str,
    started_at: dt.datetime,
    seconds: float,
    rows: Iterable[Row],
    *,
    job_id: str,
    missing: str,
    seen: Seen | None = None,
) -> Report:
    """Make a report of the rows.

    Args:
        subject: what was examined, for people.
        started_at: when it began.
        seconds: how long it took.
        rows: the job's results.
        job_id: of the hostile job.
        missing: why an attempt without a result was not examined.
        seen: the observations from outside afterwards; None: none were made.
    """
    told = {(row.id, row.place): row for row in rows}
    listeners = {place: Listener(name=place, kind=Kind.CODE, path=NAMES[place], job_id=job_id) for place in Place}
    results = []
    for check in CHECKS:
        for place in ATTEMPTS[check.id].places:
            row = told.get((check.id, place))
            evidence = Evidence(Outcome.NOT_EXAMINED, "", missing) if row is None else _evidence(row, seen)
            results.append(result_of(listeners[place], check, evidence, 0.0 if row is None else row.seconds))
    used = {result.listener for result in results}
    return Report(
        subject=subject,
        started_at=started_at,
        seconds=round(seconds, 1),
        listeners=tuple(ListenerReport(listener=each) for each in listeners.values() if each.name in used),
        results=tuple(results),
    )


def _evidence(row: Row, seen: Seen | None) -> Evidence:
    if seen is not None and (row.id, row.place) in (seen.heard or ()):
        return finding(row.done, "the outlet has heard it")  # whatever the job says
    if row.outcome is Tried.PLANTED:
        return not_examined(f"{row.done}: nobody looked at it from outside") if seen is None else judge(row, seen)
    return Evidence(_OUTCOMES[row.outcome], row.done, row.seen)
