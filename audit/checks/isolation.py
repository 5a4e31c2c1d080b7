"""What keeps jobs from the rest of the cluster, as its TaskManagers announce it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Kind, Severity, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.core import Home, StoreError, read_bounded

MAX_TOLD = 5
_ISOLATED = frozenset({"sandbox", "uid"})


class _Announced(msgspec.Struct, frozen=True):
    """A TaskManager's announcement; one that says nothing about isolation has none."""

    name: str
    isolation: str = "none"


def _jobs_isolated(subject: Subject) -> Evidence:
    endpoints = Home.at(Path(subject.listener.path)).run / "endpoints"
    done = f"read what each TaskManager announces in {endpoints}"
    levels = {}
    for path in sorted(endpoints.glob("taskmanager-*.json")):
        try:
            announced = msgspec.json.decode(read_bounded(path), type=_Announced)
        except (StoreError, msgspec.MsgspecError) as error:
            return finding(done, f"{path.name} cannot be read: {error}")
        levels[announced.name] = announced.isolation
    if not levels:
        return not_examined("no TaskManager is registered here")
    bad = [f"{name} ({level})" for name, level in levels.items() if level not in _ISOLATED]
    if bad:
        more = f" and {len(bad) - MAX_TOLD} more" if len(bad) > MAX_TOLD else ""
        return finding(done, f"jobs can do whatever their TaskManager can: {', '.join(bad[:MAX_TOLD])}{more}")
    return passed(done, ", ".join(sorted(set(levels.values()))))


CHECKS = (
    Check(
        id="ISO-01",
        title="Jobs are isolated from the processes that run them",
        problem="jobs without isolation",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.HOME}),
        expected="every TaskManager keeps jobs in sandboxes, or at least under users of their own",
        references=(ref.ASVS_ACCESS, ref.CWE_ISOLATION),
        remedy='Set isolation.level = "sandbox"; `sluice doctor` says whether the machine can.',
        run=_jobs_isolated,
    ),
)
