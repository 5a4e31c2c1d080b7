"""Runs the whole diagnosis: read files, connect to listeners, report problems."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.core import Home
from sluice.pki.inspect.doctor.authorities import (
    authority_problems,
    ledger_problems,
    list_problems,
    parse_authority,
    parse_bundles,
    refusal_problems,
)
from sluice.pki.inspect.doctor.facts import HomeFacts
from sluice.pki.inspect.doctor.identities import identity_problems
from sluice.pki.inspect.doctor.online import (
    announced,
    clock_problems,
    listener_problems,
    look_at,
    peer_time,
    process_problems,
    stale_problems,
)
from sluice.pki.inspect.doctor.permissions import leftover_problems, permission_problems
from sluice.pki.inspect.doctor.scan import read_home
from sluice.pki.inspect.problems import Problem, Severity, worst_first


@dataclass(frozen=True, slots=True)
class Processes:
    """What the launcher's record says: whether a cluster runs, and which of its processes do not."""

    record: Path
    running: bool = False
    dead: tuple[str, ...] = ()

    @property
    def crashed(self) -> bool:
        """The launcher is gone, and all that it started with it."""
        return bool(self.dead) and not self.running


def examine(
    home: Home, processes: Processes, clock: Callable[[], dt.datetime], *, online: bool = True
) -> list[Problem]:
    """Everything that is wrong in ``home`` and with what runs from it, worst first.

    Args:
        home: the home.
        processes: of its launcher.
        clock: the time, with time zone.
        online: connect to the listeners that are announced.

    Raises:
        StoreError: there is no such home.
    """
    found = list(announced(home))
    facts = read_home(home, running=processes.running or (not processes.crashed and any(each.alive for each in found)))
    problems = judge(facts, clock()) + process_problems(processes.dead, processes.record)
    # Of a cluster that crashed as a whole, its announcements say nothing new.
    for process in () if processes.crashed else found:
        problems += stale_problems(process)
        if online and process.alive is not False:
            problems += itertools.chain.from_iterable(listener_problems(each) for each in look_at(process))
            if process.clock is not None:
                problems += clock_problems(str(process.clock), peer_time(process.clock), clock())
    return worst_first(problems)


def judge(facts: HomeFacts, now: dt.datetime) -> list[Problem]:
    """Everything that follows from what was read. Pure."""
    authorities = [found for each in facts.authorities if (found := parse_authority(each)) is not None]
    authorities += parse_bundles(facts.bundles)
    problems = permission_problems(facts.files, facts.owner) + leftover_problems(facts.leftovers)
    problems += [
        Problem(
            severity=Severity.ERROR,
            code="unreadable",
            path=str(path),
            what=what,
            why="neither can the process that needs it",
            remedy="check who owns it, and its size",
        )
        for path, what in facts.unreadable
    ]
    problems += authority_problems(facts.authorities, now)
    for identity in facts.identities:
        problems += identity_problems(identity, authorities, now, running=facts.running)
    problems += list_problems(facts, authorities, now)
    problems += refusal_problems(facts.refusals, facts.ledger)
    return problems + ledger_problems(facts.ledger, facts.ledger_error)
