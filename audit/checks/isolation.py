"""The isolation of jobs from the rest of the cluster, as TaskManagers announce it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Kind, Severity, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.core import Home, StoreError, read_bounded

MAX_TOLD = 5
_ISOLATED = frozenset({"sandbox", "uid"})
_DECIDED = frozenset({"enforce", "audit"})


class _Announced(msgspec.Struct, frozen=True):
    """A TaskManager's announcement; a missing field means that it lacks the feature."""

    name: str
    isolation: str = "none"
    egress: str = "off"


def _jobs_isolated(subject: Subject) -> Evidence:
    return _judged(subject, lambda each: each.isolation, _ISOLATED, "jobs can do whatever their TaskManager can")


def _jobs_kept_in(subject: Subject) -> Evidence:
    return _judged(
        subject, lambda each: each.egress, _DECIDED, "jobs connect to whatever their machine can reach, unrecorded"
    )


def _judged(subject: Subject, of: Callable[[_Announced], str], good: frozenset[str], problem: str) -> Evidence:
    """Judge one value ``of`` each announcement of a home's TaskManagers."""
    endpoints = Home.at(Path(subject.listener.path)).run / "endpoints"
    done = f"read what each TaskManager announces in {endpoints}"
    values = {}
    for path in sorted(endpoints.glob("taskmanager-*.json")):
        try:
            announced = msgspec.json.decode(read_bounded(path), type=_Announced)
        except (StoreError, msgspec.MsgspecError) as error:
            return finding(done, f"{path.name} cannot be read: {error}")
        values[announced.name] = of(announced)
    if not values:
        return not_examined("no TaskManager is registered here")
    bad = [f"{name} ({value})" for name, value in values.items() if value not in good]
    if bad:
        more = f" and {len(bad) - MAX_TOLD} more" if len(bad) > MAX_TOLD else ""
        return finding(done, f"{problem}: {', '.join(bad[:MAX_TOLD])}{more}")
    return passed(done, ", ".join(sorted(set(values.values()))))


CHECKS = (
    Check(
        id="ISO-01",
        title="Jobs are isolated from the processes that run them",
        problem="jobs without isolation",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.HOME}),
        expected="every TaskManager runs jobs in sandboxes, or at least as users of their own",
        references=(ref.ASVS_ACCESS, ref.CWE_ISOLATION),
        remedy='Set isolation.level = "sandbox"; `sluice doctor` says whether this machine supports it.',
        run=_jobs_isolated,
    ),
    Check(
        id="ISO-02",
        title="Outbound connections of jobs pass the egress policy",
        problem="jobs that can connect to anything",
        severity=Severity.MEDIUM,
        kinds=frozenset({Kind.HOME}),
        expected="every TaskManager gives each job a network of its own and lets out what the policy allows",
        references=(ref.ASVS_ACCESS, ref.CWE_ISOLATION),
        remedy='Set egress.mode = "enforce" and name in the policy what jobs may connect to; "audit" records first.',
        run=_jobs_kept_in,
    ),
)
