"""Runs the whole diagnosis: read files, connect to listeners, report findings."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.core import Home
from sluice.pki.inspect.doctor.authorities import (
    authority_findings,
    ledger_findings,
    list_findings,
    parse_authority,
    parse_bundles,
    refusal_findings,
)
from sluice.pki.inspect.doctor.facts import HomeFacts
from sluice.pki.inspect.doctor.identities import identity_findings
from sluice.pki.inspect.doctor.online import (
    announced,
    clock_findings,
    listener_findings,
    look_at,
    peer_time,
    process_findings,
    stale_findings,
)
from sluice.pki.inspect.doctor.permissions import leftover_findings, permission_findings
from sluice.pki.inspect.doctor.scan import read_home
from sluice.pki.inspect.findings import Finding, worst_first


@dataclass(frozen=True, slots=True)
class Processes:
    """The launcher's record: whether a cluster runs, and which of its processes do not."""

    record: Path
    running: bool = False
    dead: tuple[str, ...] = ()

    @property
    def crashed(self) -> bool:
        """The launcher and all its processes are gone."""
        return bool(self.dead) and not self.running


def examine(
    home: Home, processes: Processes, clock: Callable[[], dt.datetime], *, online: bool = True
) -> list[Finding]:
    """All problems of ``home`` and its running processes, worst first.

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
    findings = judge(facts, clock()) + process_findings(processes.dead, processes.record)
    # The announcements of a cluster that crashed as a whole say nothing new.
    for process in () if processes.crashed else found:
        findings += stale_findings(process)
        if online and process.alive is not False:
            findings += itertools.chain.from_iterable(listener_findings(each) for each in look_at(process))
            if process.clock is not None:
                findings += clock_findings(str(process.clock), peer_time(process.clock), clock())
    return worst_first(findings)


def judge(facts: HomeFacts, now: dt.datetime) -> list[Finding]:
    """All findings from the facts. Pure."""
    authorities = [found for each in facts.authorities if (found := parse_authority(each)) is not None]
    authorities += parse_bundles(facts.bundles)
    findings = permission_findings(facts.files, facts.owner) + leftover_findings(facts.leftovers)
    findings += [
        Finding.error(
            "unreadable",
            str(path),
            what,
            why="the process that needs it cannot read it either",
            remedy="check who owns it, and its size",
        )
        for path, what in facts.unreadable
    ]
    findings += authority_findings(facts.authorities, now)
    for identity in facts.identities:
        findings += identity_findings(identity, authorities, now, running=facts.running)
    findings += list_findings(facts, authorities, now)
    findings += refusal_findings(facts.refusals, facts.ledger)
    return findings + ledger_findings(facts.ledger, facts.ledger_error)
