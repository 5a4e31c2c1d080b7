"""Leadership as a state machine with faults at any time.

Candidates are cut off, paused and killed; answers are lost or come late. The job store, the rule by which
a leader trusts its own leadership, the lease of drivers and the rule by which a new leader waits are
real. Only the network, the election service and time are simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hypothesis import Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, rule

from sluice.runtime.ha.errors import HaError, LeadershipLost, OutcomeUnknown
from sluice.runtime.ha.leadership_validity import LeadershipValidity
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.dispatcher.orphaned_drivers import seconds_until_gone
from sluice.runtime.jobmanager.store.job_store import JobStore
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import BlobRef, JobState, JobSubmission
from sluice.runtime.spark.driver.link.lease import DriverLease
from tests.unit.runtime.ha.simulated import Lines, MemoryStorage, Service, SimulatedPointers

TIMEOUT = 10.0
LEASE = 15.0
MOST_JOBS = 8
FATES = ("ok", "ok", "no request", "no answer", "late")
SPANS = (1.0, 4.0, 7.9, 9.9, 10.1)
HAPPENINGS = strategies.tuples(
    strategies.sampled_from(
        [
            *("time", "time", "submit", "submit", "network", "network"),
            *("end", "something_arrives_late", "pauses_or_goes_on", "is_killed"),
        ]
    ),
    strategies.integers(0, 9),
    strategies.floats(0, 0.999),
)


def submission() -> JobSubmission:
    """Return a submission; its content does not matter."""
    return JobSubmission(name="p", owner="a", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1))


@dataclass
class Driver:
    """A driver of one attempt; it lives until it is ended or its lease expires."""

    job_id: str
    attempt: int
    latch: int
    lease: DriverLease


@dataclass
class Candidate:
    """A JobManager that may lead."""

    name: str
    lines: Lines
    latch: int = 0
    validity: LeadershipValidity | None = None
    granted_at: float = 0.0
    store: JobStore | None = None
    paused: bool = False
    waiting: dict[str, float] = field(default_factory=dict)


class Leadership(RuleBasedStateMachine):
    """The state machine; see the module's documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.service = Service(TIMEOUT)
        self.storage = MemoryStorage()
        self.candidates = [Candidate(f"jm-{number}", Lines(self.service)) for number in range(2)]
        self.confirmed: set[str] = set()
        self.unsure: set[str] = set()
        self.ended: set[str] = set()
        self.drivers: list[Driver] = []
        self.latches: dict[int, str] = {}

    def teardown(self) -> None:
        self.runner.close()

    @rule(happenings=strategies.lists(HAPPENINGS, min_size=8, max_size=12))
    def things_happen(self, happenings: list[tuple[str, int, float]]) -> None:
        """Run several events, as most have an effect only together; check the invariants after each."""
        for name, number, share in happenings:
            which = number % 2
            match name:
                case "network":
                    self.the_network_changes(which, FATES[int(share * len(FATES))])
                case "time":
                    self.time_passes(SPANS[int(share * len(SPANS))])
                case "submit":
                    self.a_job_is_submitted(which)
                case "end":
                    self.a_job_ends(which, number)
                case _:
                    getattr(self, name)(which)
            self.everybody_does_what_is_due()
            self.check()

    def check(self) -> None:
        """Check all invariants."""
        self.at_most_one_believes_that_it_leads()
        self.who_was_replaced_never_writes_again()
        self.no_confirmed_submission_is_lost()
        self.no_result_is_lost()
        self.no_job_runs_twice()
        self.every_accepted_job_can_be_read()

    # --- what happens ---------------------------------------------------------------------------------------

    def the_network_changes(self, which: int, fate: str) -> None:
        self.candidates[which].lines.fate = fate

    def something_arrives_late(self, which: int) -> None:
        self.candidates[which].lines.deliver_late()

    def pauses_or_goes_on(self, which: int) -> None:
        self.candidates[which].paused = not self.candidates[which].paused

    def time_passes(self, seconds: float) -> None:
        self.service.pass_time(seconds)
        self.drivers = [driver for driver in self.drivers if driver.lease.left > 0]

    def is_killed(self, which: int) -> None:
        """Kill a candidate, which then returns with a new session.

        Its drivers end only when their leases expire.
        """
        candidate = self.candidates[which]
        candidate.validity, candidate.store, candidate.waiting, candidate.latch = None, None, {}, 0

    def everybody_does_what_is_due(self) -> None:
        """Every candidate that is not paused asks the service who leads, and acts on the answer."""
        for candidate in self.candidates:
            self._ask(candidate)
            self._renew_leases(candidate)
            self._start_what_waited(candidate)

    def _ask(self, candidate: Candidate) -> None:
        if candidate.paused or candidate.lines.fate != "ok":
            return
        asked_at = self.service.now
        if not self.service.hear(candidate.latch):
            candidate.latch = self.service.open()
            candidate.validity, candidate.store = None, None
        if self.service.first() != candidate.latch:
            return
        if candidate.validity is None:
            self._grant(candidate, asked_at)
        else:
            candidate.validity.confirm(asked_at)

    def _renew_leases(self, candidate: Candidate) -> None:
        if not self._believes(candidate):
            return
        for driver in self.drivers:
            if driver.latch == candidate.latch:
                self.runner.run(driver.lease.ask(_answered))

    def a_job_is_submitted(self, which: int) -> None:
        candidate = self.candidates[which]
        if candidate.store is None or candidate.paused or len(self.confirmed) >= MOST_JOBS:
            return
        job_id = secrets.token_hex(16)
        try:
            self.runner.run(candidate.store.accept(job_id, submission(), 1, lambda _: Path("x")))
        except OutcomeUnknown:
            self._step_down(candidate)
            self.unsure.add(job_id)
        except LeadershipLost:
            self._step_down(candidate)
        else:
            self.confirmed.add(job_id)
            self._run(candidate, job_id)

    def _start_what_waited(self, candidate: Candidate) -> None:
        if candidate.store is None or candidate.paused:
            return
        for job_id in [job_id for job_id, at in candidate.waiting.items() if at <= self.service.now]:
            if candidate.waiting.pop(job_id, None) is None:
                return  # starting one before showed that it leads no more
            self._run(candidate, job_id)

    def a_job_ends(self, which: int, number: int) -> None:
        candidate = self.candidates[which]
        own = [driver for driver in self.drivers if driver.latch == candidate.latch]
        if not own or candidate.store is None or candidate.paused:
            return
        driver = own[number % len(own)]
        detail = accepted_detail(driver.job_id, submission(), 1)
        record = JobRecord(
            submission=submission(), detail=msgspec.structs.replace(detail, state=JobState.FINISHED, end_time=2)
        )
        try:
            self.runner.run(candidate.store.put_result(record))
            self.drivers.remove(driver)
            self.ended.add(driver.job_id)
            self.runner.run(candidate.store.clean(driver.job_id))
        except (LeadershipLost, HaError):
            self._step_down(candidate)

    # --- what must hold -------------------------------------------------------------------------------------

    def at_most_one_believes_that_it_leads(self) -> None:
        assert sum(self._believes(each) for each in self.candidates) <= 1

    def who_was_replaced_never_writes_again(self) -> None:
        assert self.service.written_by == sorted(self.service.written_by)

    def no_confirmed_submission_is_lost(self) -> None:
        there = {name for folder, name in self.service.pointers if folder in {"jobs", "results"}}
        assert self.confirmed <= there

    def no_result_is_lost(self) -> None:
        assert self.ended <= {name for folder, name in self.service.pointers if folder == "results"}

    def no_job_runs_twice(self) -> None:
        alive = [driver.job_id for driver in self.drivers if driver.lease.left > 0]
        assert len(alive) == len(set(alive)), alive

    def every_accepted_job_can_be_read(self) -> None:
        for (folder, job_id), pointer in self.service.pointers.items():
            if folder == "jobs" and ("results", job_id) not in self.service.pointers:
                written = msgspec.json.decode(pointer.value)["submission"]
                assert written is not None or job_id not in self.confirmed
                assert written is None or written["name"] in self.storage.entries

    # --- inside ---------------------------------------------------------------------------------------------

    def _believes(self, candidate: Candidate) -> bool:
        return not candidate.paused and candidate.validity is not None and candidate.validity.remaining > 0

    def _grant(self, candidate: Candidate, asked_at: float) -> None:
        validity = candidate.validity = LeadershipValidity(lambda: TIMEOUT, asked_at, lambda: self.service.now)

        def check() -> None:
            if validity.remaining <= 0:
                raise LeadershipLost("not any more")

        pointers = SimulatedPointers(self.service, candidate.lines, candidate.latch, check)
        store = JobStore(pointers, self.storage, epoch=candidate.latch, origin=candidate.name)
        candidate.granted_at, candidate.store, candidate.waiting = self.service.now, store, {}
        # Its own machine is cleared when a term begins
        # (sluice.runtime.jobmanager.dispatcher.orphan_cleanup.kill_orphans).
        own = {number for number, name in self.latches.items() if name == candidate.name}
        self.drivers = [driver for driver in self.drivers if driver.latch not in own]
        self.latches[candidate.latch] = candidate.name
        try:
            recovered = self.runner.run(store.recover())
        except HaError:
            self._step_down(candidate)
            return
        assert recovered.damaged == ()
        for job in recovered.accepted:
            assert job.submission is not None
            wait = seconds_until_gone(granted_at=candidate.granted_at, lease=LEASE, now=self.service.now)
            may_run = job.attempt is not None and job.attempt.running
            candidate.waiting[job.job_id] = self.service.now + (wait if may_run else 0.0)

    def _run(self, candidate: Candidate, job_id: str) -> None:
        if candidate.store is None:
            return
        try:
            attempt = self.runner.run(candidate.store.begin_attempt(job_id)).number
        except HaError:
            self._step_down(candidate)
            return
        if not self._believes(candidate):
            return
        self.drivers.append(Driver(job_id, attempt, candidate.latch, DriverLease(LEASE, lambda: self.service.now)))

    def _step_down(self, candidate: Candidate) -> None:
        """Step down as a process does: kill its drivers and close its session."""
        self.drivers = [driver for driver in self.drivers if driver.latch != candidate.latch]
        with contextlib.suppress(KeyError):
            del self.service.sessions[candidate.latch]
        candidate.validity, candidate.store, candidate.waiting, candidate.latch = None, None, {}, 0


async def _answered() -> None:
    """Answer a lease request; the JobManager that was asked leads."""


UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Shrinking a failure would take longer than a test may."""

TestLeadership = Leadership.TestCase
TestLeadership.settings = settings(max_examples=60, stateful_step_count=8, phases=UNSHRUNK)
