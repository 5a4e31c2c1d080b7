"""Runs checks on several listeners concurrently and puts the results into a report."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from sluice.audit.catalogue import CHECKS
from sluice.audit.check import Check
from sluice.audit.facts import negotiated
from sluice.audit.model import TLS_KINDS, Evidence, Listener, ListenerReport, Report, Result, finding, not_examined
from sluice.audit.subject import Subject
from sluice.audit.wire import ConnectionEnded, Silent
from sluice.core import SluiceError

PARALLEL = 48
"""Checks at the same time; a check mostly waits."""
FEW = 4
"""Repeated checks at the same time."""

Progress = Callable[[Result], None]


def applicable(subjects: Sequence[Subject], checks: Sequence[Check] = CHECKS) -> list[tuple[Subject, Check]]:
    """The checks that apply, in the order of the listeners."""
    return [(subject, check) for subject in subjects for check in checks if check.applies_to(subject.listener)]


def run_check(subject: Subject, check: Check) -> Result:
    """Run one check; an error is reported, never counted as a pass."""
    started = time.monotonic()
    return result_of(subject.listener, check, _evidence(subject, check), time.monotonic() - started)


def _evidence(subject: Subject, check: Check) -> Evidence:
    if check.connects and (why := subject.unreachable):
        return not_examined(f"unreachable: {why}")
    try:
        return check.run(subject)
    except ConnectionEnded as ended:
        silence = isinstance(ended.ending, Silent)
        return _came_to_nothing(subject, f"the listener did not go on: {ended.ending}", silence=silence)
    except (OSError, SluiceError, ValueError) as error:
        return _came_to_nothing(subject, f"{type(error).__name__}: {error}", silence=isinstance(error, TimeoutError))


def _came_to_nothing(subject: Subject, why: str, *, silence: bool) -> Evidence:
    """The result of a check that failed. If the listener completes other handshakes it is a finding, never a pass."""
    if subject.has_ended:
        return not_examined(f"its job has ended meanwhile: {why}")
    if subject.listener.kind in TLS_KINDS and subject.handshake is not None:
        return finding("tried", f"the check failed: {why}", silence=silence)
    return not_examined(why)


def _quiet(first: Evidence, second: Evidence) -> Evidence:
    """The result of the repetition without concurrent checks, with the first result in its text."""
    return dataclasses.replace(second, seen=f"{second.seen} (tried again; among the other checks: {first.seen})")


def result_of(listener: Listener, check: Check, evidence: Evidence, seconds: float = 0.0) -> Result:
    """The result of a check."""
    check = check.on(listener)
    return Result(
        check=check.id,
        title=check.title,
        listener=listener.name,
        place=listener.place,
        severity=check.severity if evidence.severity is None else evidence.severity,
        outcome=evidence.outcome,
        done=evidence.done,
        expected=check.expected,
        references=check.references,
        seen=evidence.seen,
        remedy=check.remedy,
        problem=check.problem,
        seconds=round(seconds, 3),
    )


def examine(
    name: str, subjects: Sequence[Subject], *, checks: Sequence[Check] = CHECKS, progress: Progress | None = None
) -> Report:
    """Run every check that applies to ``subjects``; ``name`` describes the subject.

    A finding that depends on a timeout is checked again after all others, a few at a time: a listener on a machine that
    is busy with the other checks answers late.
    """
    started = time.monotonic()
    started_at = subjects[0].options.clock() if subjects else dt.datetime.now(dt.UTC)
    pairs = applicable(subjects, checks)
    results: dict[int, Result] = {}
    silent: dict[int, Evidence] = {}

    def run(number: int) -> None:
        subject, check = pairs[number]
        began = time.monotonic()
        evidence = _evidence(subject, check)
        if evidence.silence:
            silent[number] = evidence
        results[number] = result_of(subject.listener, check, evidence, time.monotonic() - began)
        if progress is not None:
            progress(results[number])

    def again(number: int) -> None:
        subject, check = pairs[number]
        began = time.monotonic()
        evidence = _quiet(silent[number], _evidence(subject, check))
        results[number] = result_of(subject.listener, check, evidence, time.monotonic() - began)

    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="audit") as pool:
        facts = list(pool.map(negotiated, subjects))
        for last in (False, True):
            list(pool.map(run, [number for number, (_, check) in enumerate(pairs) if check.last is last]))
    with ThreadPoolExecutor(FEW, thread_name_prefix="audit-again") as pool:
        list(pool.map(again, sorted(silent)))
    return Report(
        subject=name,
        started_at=started_at,
        seconds=round(time.monotonic() - started, 3),
        listeners=tuple(
            ListenerReport(listener=subject.listener, negotiated=fact, unreachable=subject.unreachable)
            for subject, fact in zip(subjects, facts, strict=True)
        ),
        results=tuple(results[number] for number in range(len(pairs))),
    )


def joined(name: str, reports: Sequence[Report]) -> Report:
    """Join several simultaneous reports; ``name`` describes the subject."""
    return Report(
        subject=name,
        started_at=min(report.started_at for report in reports),
        seconds=max(report.seconds for report in reports),
        listeners=tuple(listener for report in reports for listener in report.listeners),
        results=tuple(result for report in reports for result in report.results),
    )
