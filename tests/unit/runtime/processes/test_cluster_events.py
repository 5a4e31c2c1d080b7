"""Events of its cluster that the leading JobManager reports to people."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core import Home, make_private_directory, write_secret
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.refusals import Refusal, Refusals
from sluice.pki.config import PkiConfig
from sluice.pki.x509 import AuthorityKind
from sluice.runtime.ha.pointers import Pointer
from sluice.runtime.jobmanager.views import JobSummary
from sluice.runtime.messages import JobState
from sluice.runtime.notify import Event, Kind
from sluice.runtime.processes.notifications import ClusterEvents, PointerEntry
from sluice.runtime.rest.audit_summary import AuditSummary, summary_file
from sluice.runtime.shuffle.control_plane import ShuffleOverview, WorkerReport, WorkerState, WorkerView
from tests.unit.runtime.ha.simulated import Lines, Service, SimulatedPointers

NOW = dt.datetime.now(dt.UTC)


def job(number: int, state: JobState, end: int | None = 1000) -> JobSummary:
    return JobSummary(id=f"job-{number}", name="n", owner="ada", state=state, start_time=0, end_time=end, duration_ms=0)


def worker(name: str, state: WorkerState) -> WorkerView:
    return WorkerView(
        name=name, host="h", port=1, state=state, reason="no room", last_heartbeat=0, bytes=0, report=WorkerReport()
    )


class World:
    """A home with authorities, and the data that its JobManager receives."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root).create()
        self.store = AuthorityStore(self.home.pki)
        self.store.ensure(PkiConfig(), NOW)
        self.now = NOW
        self.known: list[JobSummary] = []
        self.text = ""
        self.workers: list[WorkerView] = []

    async def jobs(self) -> Sequence[JobSummary]:
        return self.known

    async def metrics(self) -> str:
        return self.text

    async def overview(self) -> ShuffleOverview:
        return ShuffleOverview("m", tuple(self.workers), ())

    async def see(self, kind: Kind, *, shuffle: bool = True, anchor: x509.Certificate | None = None) -> list[Event]:
        events = ClusterEvents(
            home=self.home,
            anchor=lambda: anchor or self.store.certificate(AuthorityKind.INTERNAL),
            jobs=self.jobs,
            metrics=self.metrics,
            overview=self.overview if shuffle else None,
            clock=lambda: self.now,
        )
        return list(await events.sources()[kind]())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


async def test_a_healthy_cluster_has_no_events(world: World) -> None:
    for kind in Kind:
        assert await world.see(kind) == [], kind


async def test_only_failed_jobs_are_job_failed_events(world: World) -> None:
    world.known = [job(n, state) for n, state in enumerate(JobState)] + [job(99, JobState.FAILED, None)]
    (event,) = await world.see(Kind.JOB_FAILED)
    assert event.subject == f"job-{list(JobState).index(JobState.FAILED)}"
    assert event.at == 1.0


async def test_late_certificates_of_any_process_are_events(world: World) -> None:
    soon = world.now.timestamp() + 60
    world.text = f'sluice_identity_not_after_seconds{{identity="spiffe://d/auth/x",process="auth/x"}} {soon}\n'
    (event,) = await world.see(Kind.CERTIFICATE_NOT_RENEWED)
    assert event.subject == "spiffe://d/auth/x"


async def test_ending_authorities_of_this_and_another_home_are_events(world: World, tmp_path: Path) -> None:
    config = PkiConfig()
    world.now = NOW + dt.timedelta(days=config.authority_days - 20)
    kinds = {each.subject.split()[0] for each in await world.see(Kind.AUTHORITY_ENDS)}
    assert kinds == {"internal", "edge"}
    elsewhere = AuthorityStore(World(tmp_path / "other").home.pki).certificate(AuthorityKind.INTERNAL)
    subjects = [each.subject for each in await world.see(Kind.AUTHORITY_ENDS, anchor=elsewhere)]
    assert f"internal authority {elsewhere.serial_number:x}" in subjects


async def test_only_excluded_shuffle_workers_are_worker_excluded_events(world: World) -> None:
    world.workers = [worker(f"sw-{state.lower()}", state) for state in WorkerState]
    assert [each.subject for each in await world.see(Kind.WORKER_EXCLUDED)] == ["sw-excluded"]
    assert await world.see(Kind.WORKER_EXCLUDED, shuffle=False) == []


async def test_findings_of_the_last_audit_are_an_event(world: World) -> None:
    make_private_directory(summary_file(world.home).parent)
    summary = AuditSummary(at=NOW.timestamp(), checks=10, findings={"high": 1})
    write_secret(summary_file(world.home), msgspec.json.encode(summary))
    (event,) = await world.see(Kind.AUDIT_FINDING)
    assert "1 high" in event.what
    write_secret(summary_file(world.home), msgspec.json.encode(msgspec.structs.replace(summary, findings={})))
    assert await world.see(Kind.AUDIT_FINDING) == []


async def test_renewals_with_superseded_certificates_are_events(world: World) -> None:
    refusal = Refusal(
        identity="spiffe://sluice.local/taskmanager/tm-1",
        authority=AuthorityKind.INTERNAL,
        serial="a1",
        newest="b2",
        not_after=NOW + dt.timedelta(days=1),
        first=NOW,
        last=NOW,
    )
    Refusals(world.home.pki).add(refusal)
    (event,) = await world.see(Kind.SUPERSEDED_RENEWAL)
    assert event.subject == refusal.identity
    world.now = NOW + dt.timedelta(days=8)
    assert await world.see(Kind.SUPERSEDED_RENEWAL) == []


async def test_the_delivery_state_is_stored_as_a_pointer_for_the_next_leader() -> None:
    service = Service(timeout=10.0)
    entry = PointerEntry(SimulatedPointers(service, Lines(service), service.open(), lambda: None))
    assert await entry.read() is None
    for data in (b"1", b"2"):
        await entry.write(data)
        assert await entry.read() == data
    assert service.pointers["meta", "notifications"] == Pointer(b"2", 1)
