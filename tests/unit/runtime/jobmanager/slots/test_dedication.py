"""TaskManagers that serve one job only."""

from __future__ import annotations

import itertools

from hypothesis import given, settings, strategies as st

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.dedication import Dedication
from sluice.runtime.jobmanager.slots.provision import RELEASED_SECONDS, Provided, Provision, ProvisionLimits
from sluice.runtime.jobmanager.slots.slot_pools import SlotPools
from sluice.runtime.messages import (
    SlotCount,
    SlotKind,
    SlotProfile,
    SlotReport,
    SlotState,
    SlotStatus,
    TaskManagerRegistration,
)
from sluice.runtime.placement import Placement

SIZE = SlotProfile(cores=1, memory_mb=512)
SLOTS = 2
LIMITS = ProvisionLimits(0, 4, 60.0, SIZE.multiplied(SLOTS), SIZE.multiplied(1))
NOW = 1000.0


class Cluster:
    """Pods with two executor slots and one driver slot, each pod for one job.

    Pods named ``new-…`` were started by the current leader.
    """

    def __init__(self, *names: str) -> None:
        numbers = itertools.count(1)
        self.dedication = Dedication(lambda name: name.startswith("new-"))
        self.slots = SlotPools(lambda: f"a-{next(numbers)}", placement=Placement.SPREAD, dedication=self.dedication)
        self.provision = Provision(LIMITS)
        self.jobs: set[str] = set()
        for name in names:
            self.register(name)

    def register(self, name: str, *held: SlotStatus, expected: tuple[str, ...] = ()) -> None:
        """Register a pod as a TaskManager."""
        self.slots.register(
            TaskManagerRegistration(
                name=name, host="h", slots=SLOTS, profile=SIZE, python="p", version="0", driver_slots=1,
                driver_profile=SIZE, report=SlotReport(slots=held),
            ),
            expected,
        )  # fmt: skip

    def wants(self, job: str, executors: int = 1, drivers: int = 1) -> list[tuple[str, str]]:
        """Let a job require slots; return what is granted, as pairs of TaskManager and job."""
        self.jobs.add(job)
        for kind, count in ((SlotKind.DRIVER, drivers), (SlotKind.EXECUTOR, executors)):
            self.slots.require(SlotRequirement(job, (SlotCount(SIZE, count),), "m", b"t", kind=kind))
        return [(each.taskmanager, each.request.job_id) for each in self.slots.decide()]

    def ends(self, job: str) -> None:
        """End a job and free its slots."""
        self.jobs.discard(job)
        for release in self.slots.release_job(job):
            self.slots.freed(release.allocation_id)

    def provided(self, now: float = NOW) -> Provided:
        """Decide what to provide, as the ResourceManager does."""
        dedicated = self.slots.dedicated_demands(LIMITS, self.jobs.__contains__)
        return self.provision.decide(self.slots.demands(LIMITS), now, dedicated)


def test_a_second_job_gets_nothing_on_the_taskmanager_of_the_first() -> None:
    cluster = Cluster("new-1")
    assert cluster.wants("one") == [("new-1", "one")] * 2
    assert cluster.wants("two") == []
    assert cluster.provided() == Provided(2, ())
    cluster.register("new-2")
    assert set(cluster.wants("two")) == {("new-2", "two")}


def test_a_job_fills_its_own_taskmanagers_before_it_takes_others() -> None:
    cluster = Cluster("new-1", "new-2")
    assert {name for name, _ in cluster.wants("one", executors=2)} == {"new-1"}
    assert {name for name, _ in cluster.wants("one", executors=3)} == {"new-2"}


def test_each_job_needs_taskmanagers_of_its_own_up_to_the_limit() -> None:
    cluster = Cluster()
    cluster.wants("one", executors=1)
    cluster.wants("two", executors=3)
    assert cluster.provided().wanted == 3
    cluster.wants("three", executors=9)
    assert cluster.provided().wanted == 4, "as many as there may be"


def test_a_taskmanager_of_an_ended_job_is_drained_and_serves_no_other_job() -> None:
    cluster = Cluster("new-1")
    cluster.wants("one")
    cluster.ends("one")
    assert cluster.wants("two") == []
    assert cluster.provided() == Provided(2, ())
    assert cluster.provided(NOW + RELEASED_SECONDS) == Provided(1, ("new-1",))


def test_a_restarted_job_gets_its_own_taskmanager_again() -> None:
    cluster = Cluster("new-1")
    cluster.wants("one")
    for kind in SlotKind:
        for each in list(cluster.slots.of(kind).taskmanagers):
            for slot in list(each.slots.values()):
                for release in cluster.slots.release(slot.allocation_id):
                    cluster.slots.freed(release.allocation_id)
    assert cluster.provided(NOW + RELEASED_SECONDS).drain == ()
    assert {name for name, _ in cluster.wants("one")} == {"new-1"}


def test_a_taskmanager_of_an_earlier_leader_serves_only_the_job_whose_slots_it_holds() -> None:
    cluster = Cluster()
    held = SlotStatus(slot=0, state=SlotState.ACTIVE, allocation_id="x", job_id="one", profile=SIZE)
    cluster.register("old-1", held, expected=("one",))
    assert cluster.wants("two") == []
    assert {name for name, _ in cluster.wants("one", executors=2)} == {"old-1"}


def test_a_taskmanager_of_an_earlier_leader_that_holds_no_slots_is_drained_unused() -> None:
    cluster = Cluster("old-1")
    assert cluster.wants("one") == []
    assert cluster.provided().wanted == 2
    assert cluster.provided(NOW + RELEASED_SECONDS) == Provided(1, ("old-1",))


def test_a_taskmanager_that_registers_again_is_not_taken_for_a_new_taskmanager() -> None:
    cluster = Cluster("new-1")
    cluster.wants("one")
    cluster.ends("one")
    cluster.register("new-1")
    assert cluster.wants("two") == []


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["pod", "want", "end", "again"]), st.integers(0, 5), st.integers(0, 4)), max_size=40
    )
)
def test_no_taskmanager_ever_serves_two_jobs(events: list[tuple[str, int, int]]) -> None:
    cluster, served, pods = Cluster(), dict[str, str](), list[str]()
    for what, number, count in events:
        given_now: list[tuple[str, str]] = []
        if what == "pod":
            pods.append(f"new-{len(pods)}")
            cluster.register(pods[-1])
        elif what == "want":
            given_now = cluster.wants(f"job-{number}", count)
        elif what == "end":
            cluster.ends(f"job-{number}")
        elif pods:
            cluster.register(pods[number % len(pods)])
        for name, job in given_now + [(each.taskmanager, each.request.job_id) for each in cluster.slots.decide()]:
            assert served.setdefault(name, job) == job
