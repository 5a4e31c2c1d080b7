"""The ResourceManager's slots: decisions, reports, losses, and a model that compares both sides."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.refusals import MAX_REPORTS
from sluice.runtime.jobmanager.slots.slot_ledger import (
    AllocationLost,
    Release,
    Reserve,
    Slot,
    TaskManagerSlots,
)
from sluice.runtime.jobmanager.slots.slot_manager import SlotManager
from sluice.runtime.messages import (
    SlotCount,
    SlotProfile,
    SlotReport,
    SlotRequest,
    SlotState,
    SlotStatus,
)
from sluice.runtime.placement import Placement
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig
from sluice.runtime.taskmanager.errors import SlotNotAvailable
from sluice.runtime.taskmanager.slot_table import SlotTable

SMALL = SlotProfile(cores=1, memory_mb=512)
LARGE = SlotProfile(cores=4, memory_mb=8192)
MEDIUM = SlotProfile(cores=2, memory_mb=1024)
ONE, TWO, THREE = "a" * 32, "b" * 32, "c" * 32


def manager(placement: Placement = Placement.SPREAD, most: int = 0) -> SlotManager:
    """Return a slot manager with predictable allocation ids."""
    numbers = itertools.count(1)
    return SlotManager(lambda: f"alloc-{next(numbers)}", placement=placement, max_slots_per_user=most)


def wants(job_id: str, count: int, profile: SlotProfile = SMALL, *, owner: str = "") -> SlotRequirement:
    """A requirement of ``job_id``."""
    return wants_all(job_id, {profile: count}, owner=owner)


def wants_all(job_id: str, wanted: dict[SlotProfile, int], *, owner: str = "") -> SlotRequirement:
    """A requirement of slots of several sizes."""
    counts = tuple(SlotCount(profile, count) for profile, count in wanted.items())
    return SlotRequirement(job_id, counts, f"jobmaster/{job_id}", b"token", owner)


def report(*statuses: tuple[SlotState, str]) -> SlotReport:
    """A report of slots 0, 1, …"""
    return SlotReport(
        slots=tuple(
            SlotStatus(slot=i, state=state, allocation_id=allocation, job_id=ONE if allocation else "")
            for i, (state, allocation) in enumerate(statuses)
        )
    )


def test_slots_that_a_taskmanager_holds_since_an_earlier_leader_are_admitted() -> None:
    slots = manager()
    slots.register("tm-1", "h", 3, SMALL)
    held = report((SlotState.ACTIVE, "old-1"), (SlotState.RELEASING, "old-2"), (SlotState.ALLOCATED, "old-3"))
    slots.admit("tm-1", [each for each in held.slots if each.allocation_id != "old-3"])
    assert slots.report("tm-1", held) == [Release("tm-1", "old-3")]  # nobody wants it any more
    assert states(slots) == [SlotState.ACTIVE, SlotState.RELEASING, SlotState.RELEASING]
    slots.require(wants(ONE, 1))
    assert slots.decide() == []  # it has one
    assert slots.lost("tm-1")[0] == AllocationLost(ONE, "old-1")


def test_a_carved_slot_is_admitted_with_its_size() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL, LARGE)
    status = SlotStatus(slot=7, state=SlotState.ACTIVE, allocation_id="old", job_id=ONE, profile=MEDIUM)
    slots.admit("tm-1", [status, status])
    (taskmanager,) = slots.taskmanagers
    assert taskmanager.free_total == LARGE.less(MEDIUM)
    slots.require(wants_all(ONE, {MEDIUM: 1}))
    assert slots.decide() == []
    assert slots.release_job(ONE) == [Release("tm-1", "old")]


def states(slots: SlotManager, name: str = "tm-1") -> list[SlotState]:
    """States of the slots of a TaskManager."""
    return next([slot.state for slot in each.slots.values()] for each in slots.taskmanagers if each.name == name)


def test_a_requirement_is_met_as_slots_appear() -> None:
    slots = manager()
    slots.require(wants(ONE, 3))
    assert slots.decide() == []
    assert "no TaskManager" in slots.reasons().pending(ONE)
    slots.register("tm-1", "h1", 2, SMALL)
    assert len(slots.decide()) == 2
    assert slots.reasons().pending(ONE) == "2 of 3 slots: all fitting slots are in use"
    slots.register("tm-2", "h2", 2, SMALL)
    assert len(slots.decide()) == 1
    assert slots.reasons().pending(ONE) == ""
    assert slots.decide() == []


def test_slots_of_one_job_are_spread_over_taskmanagers() -> None:
    slots = manager()
    for name in ("tm-1", "tm-2", "tm-3"):
        slots.register(name, "h", 4, SMALL)
    slots.require(wants(ONE, 6))
    assert Counter(each.taskmanager for each in slots.decide()) == {"tm-1": 2, "tm-2": 2, "tm-3": 2}


def test_the_earlier_job_is_served_first() -> None:
    slots = manager()
    slots.require(wants(ONE, 2))
    slots.require(wants(TWO, 2))
    slots.register("tm-1", "h", 3, SMALL)
    assert [each.request.job_id for each in slots.decide()] == [ONE, ONE, TWO]


def test_a_slot_that_is_too_small_is_not_given_and_the_reason_says_so() -> None:
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    slots.require(wants(ONE, 1, LARGE))
    assert slots.decide() == []
    assert slots.reasons().pending(ONE) == (
        "0 of 1 slots: no TaskManager has 4 cores and 8192 MiB, the largest has 2 and 1024"
    )


def test_a_refused_slot_is_left_alone_until_its_taskmanager_reports_it_free() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    slots.refused(reserve.request.allocation_id)
    assert slots.decide() == [], "asking again at once would loop"
    slots.report("tm-1", report((SlotState.FREE, "")))
    assert len(slots.decide()) == 1


def test_a_slot_refused_to_one_job_is_offered_to_another_job_at_once() -> None:
    """The refused job is tried less and less often until it gets a slot."""
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    slots.require(wants(ONE, 10_000, SlotProfile(cores=1, memory_mb=100)))
    asked = []
    for beat in range(40):
        reserves = slots.decide()
        if reserves:
            asked.append(beat)
        for reserve in reserves:
            slots.refused(reserve.request.allocation_id)
            assert slots.decide() == [], "asking again at once would loop"
        assert "refused by tm-1" in slots.reasons().pending(ONE)
        slots.report("tm-1", report((SlotState.FREE, ""), (SlotState.FREE, "")))
    assert asked == [0, 1, 3, 7, 15, 31]
    for reserve in slots.decide():
        slots.refused(reserve.request.allocation_id)
    slots.require(wants(TWO, 1))
    (reserve,) = slots.decide()
    assert (reserve.request.job_id, reserve.request.profile) == (TWO, SMALL)


def test_the_refusal_backoff_of_a_job_is_reset_once_it_gets_a_slot() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    for beats in (1, 2):
        (reserve,) = slots.decide()
        slots.refused(reserve.request.allocation_id)
        for _ in range(beats):
            assert slots.decide() == []
            slots.report("tm-1", report((SlotState.FREE, "")))
    (reserve,) = slots.decide()
    slots.acknowledged(reserve.request.allocation_id)
    slots.release(reserve.request.allocation_id)
    slots.freed(reserve.request.allocation_id)
    (reserve,) = slots.decide()
    slots.refused(reserve.request.allocation_id)
    slots.report("tm-1", report((SlotState.FREE, "")))
    assert len(slots.decide()) == 1


def test_a_job_that_wants_many_sizes_keeps_one_taskmanager_from_the_others() -> None:
    slots = manager()
    for number in range(3):
        slots.register(f"tm-{number}", "h", 2, SMALL)
        slots.require(wants(TWO, 3))
    for reserve in slots.decide():
        slots.acknowledged(reserve.request.allocation_id)
    sizes = tuple(SlotCount(SlotProfile(cores=2, memory_mb=1024 - number), 100) for number in range(50))
    slots.require(SlotRequirement(ONE, sizes, "jobmaster/one", b"token"))
    slots.require(wants(THREE, 3))
    assert [each.request.job_id for each in slots.decide()] == [THREE, THREE]


HOSTILE_SIZES = [
    *itertools.product((0, -1, -(2**63)), (1536, 0, -1)),
    (1, 0),
    (1, -(2**40)),
    (2**63, 2**63),
    (1, 2**63),
]
HOSTILE = [SlotProfile(cores=cores, memory_mb=memory_mb) for cores, memory_mb in HOSTILE_SIZES]


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
@pytest.mark.parametrize("count", [1, 10_000, 2**63])
@pytest.mark.parametrize("quota", [0, 2])
def test_another_job_gets_its_slot_whatever_hostile_size_a_driver_requires(
    hostile: SlotProfile, count: int, quota: int
) -> None:
    """With real slot tables in the TaskManagers' place, over several heartbeats."""
    slots = manager(most=quota)
    tables = {f"tm-{number}": SlotTable(2, SMALL) for number in (1, 2)}
    for name in tables:
        slots.register(name, "h", 2, SMALL)
    slots.require(wants(ONE, count, hostile, owner="eve"))
    requests, granted = 0, []

    def serve() -> None:
        nonlocal requests
        work = slots.decide()
        while work:
            reserve = work.pop()
            requests += 1
            try:
                tables[reserve.taskmanager].reserve(reserve.request)
            except SlotNotAvailable:
                slots.refused(reserve.request.allocation_id)
                work += slots.decide()
            else:
                slots.acknowledged(reserve.request.allocation_id)
                granted.append(reserve.request.job_id)

    for _ in range(3):
        serve()
        for name, table in tables.items():
            slots.report(name, table.report())
    slots.require(wants(TWO, 1, owner="ada"))
    serve()
    assert granted == [TWO]
    assert requests == 1, "a TaskManager is not asked for what there cannot be"
    assert slots.reasons().pending(TWO) == ""


def test_jobs_lose_their_slots_on_a_lost_taskmanager_and_get_others() -> None:
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    slots.require(wants(ONE, 2))
    allocations = {each.request.allocation_id for each in slots.decide()}
    slots.register("tm-2", "h", 2, SMALL)
    assert {each.allocation_id for each in slots.lost("tm-1")} == allocations
    assert [each.taskmanager for each in slots.decide()] == ["tm-2", "tm-2"]


def test_a_taskmanager_that_registers_again_has_lost_what_it_held() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    assert slots.register("tm-1", "h", 1, SMALL) == [AllocationLost(ONE, reserve.request.allocation_id)]
    assert states(slots) == [SlotState.FREE]


def test_a_released_slot_is_reassigned_only_once_it_is_confirmed_free() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    allocation = reserve.request.allocation_id
    slots.acknowledged(allocation)
    assert slots.release_job(ONE) == [Release("tm-1", allocation)]
    slots.require(wants(TWO, 1))
    assert slots.decide() == []
    slots.freed(allocation)
    assert [each.request.job_id for each in slots.decide()] == [TWO]


def test_an_unknown_allocation_is_released() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    assert slots.report("tm-1", report((SlotState.ACTIVE, "stranger"))) == [Release("tm-1", "stranger")]
    assert states(slots) == [SlotState.RELEASING]
    assert slots.report("tm-1", report((SlotState.FREE, ""))) == []
    assert states(slots) == [SlotState.FREE]


def test_a_report_that_crosses_the_request_does_not_free_the_slot() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    assert slots.report("tm-1", report((SlotState.FREE, ""))) == []
    slots.acknowledged(reserve.request.allocation_id)
    assert slots.report("tm-1", report((SlotState.ACTIVE, reserve.request.allocation_id))) == []
    assert states(slots) == [SlotState.ACTIVE]


def test_a_slot_that_its_taskmanager_gave_up_is_reported_as_lost_to_the_job() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    slots.acknowledged(reserve.request.allocation_id)
    assert slots.report("tm-1", report((SlotState.FREE, ""))) == [AllocationLost(ONE, reserve.request.allocation_id)]
    assert len(slots.decide()) == 1


def test_a_lost_release_is_repeated_after_the_next_report() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    allocation = reserve.request.allocation_id
    slots.acknowledged(allocation)
    slots.release(allocation)
    assert slots.report("tm-1", report((SlotState.ACTIVE, allocation))) == [Release("tm-1", allocation)]


@pytest.mark.parametrize("index", [-1, 1024])
def test_a_report_of_a_slot_that_is_not_there_is_ignored(index: int) -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    strange = SlotReport(slots=(SlotStatus(slot=index, state=SlotState.ACTIVE, allocation_id="x", job_id=ONE),))
    assert slots.report("tm-1", strange) == []
    assert slots.report("nobody", strange) == []


def test_a_slot_of_another_size_is_carved_out_of_the_free_resources() -> None:
    slots = manager()
    slots.register("tm-1", "h", 4, SMALL)
    slots.require(wants(ONE, 1, MEDIUM))
    (reserve,) = slots.decide()
    assert (reserve.request.slot, reserve.request.profile) == (4, MEDIUM)
    (taskmanager,) = slots.taskmanagers
    assert (taskmanager.free_total, taskmanager.free) == (SlotProfile(cores=2, memory_mb=1024), 2)
    slots.require(wants(TWO, 4))
    assert [each.request.slot for each in slots.decide()] == [0, 1]
    assert slots.reasons().pending(TWO) == "2 of 4 slots: all fitting slots are in use"


def test_a_carved_slot_that_is_freed_is_removed_and_its_resources_are_free_again() -> None:
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    slots.require(wants(ONE, 1, MEDIUM))
    (reserve,) = slots.decide()
    slots.acknowledged(reserve.request.allocation_id)
    slots.release_job(ONE)
    (taskmanager,) = slots.taskmanagers
    assert taskmanager.free == 0
    slots.freed(reserve.request.allocation_id)
    assert (len(taskmanager.slots), taskmanager.free, taskmanager.free_total) == (2, 2, taskmanager.total)


def test_a_taskmanager_may_offer_more_than_its_default_slots_have() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL, LARGE)
    slots.require(wants_all(ONE, {SMALL: 3, SlotProfile(cores=1, memory_mb=4096): 1}))
    assert [(each.request.slot, each.request.profile.memory_mb) for each in slots.decide()] == [
        (1, 4096),
        (0, 512),
        (2, 512),
        (3, 512),
    ]


def test_a_carved_slot_that_is_missing_from_a_report_is_lost() -> None:
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    slots.require(wants(ONE, 1, MEDIUM))
    (reserve,) = slots.decide()
    slots.acknowledged(reserve.request.allocation_id)
    table = SlotTable(2, SMALL)
    assert slots.report("tm-1", table.report()) == [AllocationLost(ONE, reserve.request.allocation_id)]


def test_an_unknown_carved_slot_is_released_and_occupies_its_resources_until_then() -> None:
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    table = SlotTable(2, SMALL)
    table.reserve(request(7, "stranger", profile=MEDIUM))
    assert slots.report("tm-1", table.report()) == [Release("tm-1", "stranger")]
    slots.require(wants(ONE, 1))
    assert slots.decide() == []
    table.freed("stranger")
    slots.report("tm-1", table.report())
    assert len(slots.decide()) == 1


def test_packed_slots_leave_room_for_large_ones() -> None:
    slots = manager(Placement.PACK)
    slots.register("tm-1", "h", 4, SMALL)
    slots.register("tm-2", "h", 2, SMALL)
    slots.require(wants(ONE, 2))
    assert [each.taskmanager for each in slots.decide()] == ["tm-2", "tm-2"]


def test_small_requests_of_later_jobs_do_not_starve_a_large_one() -> None:
    """tm-1 is nearest to holding the large slot: what becomes free there is kept, and tm-2 serves the others."""
    slots = manager()
    slots.register("tm-1", "h", 4, SMALL)
    slots.register("tm-2", "h", 2, SMALL)
    slots.require(wants(ONE, 3))
    for each in slots.decide():
        slots.acknowledged(each.request.allocation_id)
    first = next(each for each in slots.taskmanagers if each.name == "tm-1")
    slots.require(wants(TWO, 1, SlotProfile(cores=4, memory_mb=2048)))
    slots.require(wants(THREE, 6))
    assert {each.taskmanager for each in slots.decide()} == {"tm-2"}
    assert slots.reasons().pending(THREE) == "1 of 6 slots: what is free is kept for another job, which came first"
    for release in slots.release_job(ONE):
        slots.freed(release.allocation_id)
    assert [each.request.job_id for each in slots.decide()] == [TWO, THREE]
    assert first.free_total == SlotProfile(cores=0, memory_mb=0)


def test_a_user_gets_no_more_slots_than_the_limit_and_other_users_get_theirs() -> None:
    slots = manager(most=3)
    slots.register("tm-1", "h", 8, SMALL)
    slots.require(wants(ONE, 2, owner="ann"))
    slots.require(wants(TWO, 4, owner="ann"))
    slots.require(wants(THREE, 3, owner="bob"))
    assert Counter(each.request.job_id for each in slots.decide()) == {ONE: 2, TWO: 1, THREE: 3}
    assert slots.reasons().pending(TWO) == "1 of 4 slots: the jobs of ann hold the 3 slots that one user may have"


def test_a_request_that_can_never_be_met_keeps_no_slots_from_other_jobs() -> None:
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    slots.require(wants(ONE, 1, LARGE))
    slots.require(wants(TWO, 2))
    assert [each.request.job_id for each in slots.decide()] == [TWO, TWO]


def test_jobs_get_replacement_slots_before_a_drained_taskmanager_is_empty() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (first,) = slots.decide()
    slots.acknowledged(first.request.allocation_id)
    assert slots.drain("tm-1") == {ONE: (first.request.allocation_id,)}
    assert slots.reasons().pending(ONE) == "0 of 1 slots: the TaskManagers that it would fit into are being drained"
    slots.register("tm-2", "h", 1, SMALL)
    (second,) = slots.decide()
    assert (second.taskmanager, slots.drained("tm-1")) == ("tm-2", False)
    assert slots.release(first.request.allocation_id) == [Release("tm-1", first.request.allocation_id)]
    slots.freed(first.request.allocation_id)
    assert slots.drained("tm-1")
    assert not slots.drained("tm-2")


def test_an_ended_job_also_releases_its_slots_on_a_drained_taskmanager() -> None:
    slots = manager()
    slots.register("tm-1", "h", 2, SMALL)
    slots.require(wants(ONE, 2))
    allocations = [each.request.allocation_id for each in slots.decide()]
    slots.drain("tm-1")
    assert [each.allocation_id for each in slots.release_job(ONE)] == allocations


def test_a_taskmanager_that_is_back_in_service_gets_slots_again() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.drain("tm-1")
    slots.require(wants(ONE, 1))
    assert slots.decide() == []
    slots.drain("tm-1", draining=False)
    assert len(slots.decide()) == 1
    assert slots.drain("nobody") == {}


OWNERS = {ONE: "ann", TWO: "bob", THREE: "ann"}
SIZES = st.sampled_from([SMALL, MEDIUM, LARGE])


class SlotModel(RuleBasedStateMachine):
    """A model of a SlotManager and real SlotTables whose messages arrive late or get lost."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self.slots = manager()
        self.tables: dict[str, SlotTable] = {}
        self.requests: list[Reserve] = []
        self.releases: list[Release] = []
        self.jobs: dict[str, dict[SlotProfile, int]] = {}
        self.moved: set[str] = set()

    @initialize(placement=st.sampled_from(list(Placement)), most=st.sampled_from([0, 3]))
    def one_taskmanager(self, placement: Placement, most: int) -> None:
        """Start with one TaskManager, so that there is something to allocate."""
        self.most = most
        self.slots = manager(placement, most)
        self.register("tm-1", 2)

    @rule(
        name=st.sampled_from(["tm-1", "tm-2", "tm-3"]),
        count=st.integers(1, 3),
        profile=st.sampled_from([SMALL, LARGE]),
        besides=st.sampled_from([None, SMALL, LARGE]),
    )
    def register(self, name: str, count: int, profile: SlotProfile = SMALL, besides: SlotProfile | None = None) -> None:
        """Register a TaskManager, perhaps again, with empty slots; messages to its earlier life are void."""
        total = None if besides is None else profile.multiplied(count).plus(besides)
        self.slots.register(name, "h", count, profile, total)
        self.tables[name] = SlotTable(count, profile, total)
        self.drop(name)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), draining=st.booleans())
    def drain(self, data: st.DataObject, draining: bool) -> None:
        """Take a TaskManager out of service or back into it."""
        name = data.draw(st.sampled_from(sorted(self.tables)))
        for allocations in self.slots.drain(name, draining=draining).values():
            self.moved |= set(allocations)
        self.tables[name].draining = draining

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Lose a TaskManager."""
        name = data.draw(st.sampled_from(sorted(self.tables)))
        self.slots.lost(name)
        del self.tables[name]
        self.drop(name)

    def drop(self, name: str) -> None:
        """Drop all messages on their way to ``name``."""
        self.requests = [each for each in self.requests if each.taskmanager != name]
        self.releases = [each for each in self.releases if each.taskmanager != name]

    @rule(job=st.sampled_from([ONE, TWO, THREE]), wanted=st.dictionaries(SIZES, st.integers(0, 4), max_size=2))
    def require(self, job: str, wanted: dict[SlotProfile, int]) -> None:
        """State the total slots that a job wants; this may change its earlier totals."""
        if not any(wanted.values()):
            self.jobs.pop(job, None)
        elif job in self.jobs:
            self.jobs[job] = wanted
        else:
            self.jobs |= {job: wanted}
        self.slots.require(wants_all(job, wanted, owner=OWNERS[job]))
        self.decide()

    @rule()
    def decide(self) -> None:
        """Let the ResourceManager decide.

        It grants what an exhaustive search would grant, and no more.
        """
        before = Counter((each.job_id, each.profile) for each in self.held())
        of_users = Counter(OWNERS[each.job_id] for each in self.held() if each.job_id in self.jobs)
        room = {each.name: free_of(each) for each in self.slots.taskmanagers if not each.draining}
        reserved = self.slots.decide()
        self.requests += reserved
        given = Counter((each.request.job_id, each.request.profile) for each in reserved)
        for each in reserved:
            assert room[each.taskmanager].fits(each.request.profile), "more than a TaskManager has"
            room[each.taskmanager] = room[each.taskmanager].less(each.request.profile)
            of_users[OWNERS[each.request.job_id]] += 1
        for owner in {OWNERS[each.request.job_id] for each in reserved}:
            assert not self.most or of_users[owner] <= self.most, "more than one user may have"
        kept: set[str] = set()
        for job, wanted in self.jobs.items():
            for profile in sorted(wanted, key=lambda each: each.memory_mb, reverse=True):
                assert given[job, profile] <= max(0, wanted[profile] - before[job, profile]), "more than was asked for"
                lacks = before[job, profile] + given[job, profile] < wanted[profile]
                if lacks and not (self.most and of_users[OWNERS[job]] >= self.most):
                    fitting = {
                        name
                        for name, free in room.items()
                        if free.fits(profile) and not self.slots._refusals.avoids(job, name)
                    }
                    assert fitting <= kept, "withheld, and not for an earlier job"
            kept |= {name for name, owner in self.slots._kept.items() if owner == job}

    def held(self) -> list[Slot]:
        """Return the slots that count for a job."""
        return [
            slot
            for each in self.slots.taskmanagers
            for slot in each.slots.values()
            if slot.state in {SlotState.ALLOCATED, SlotState.ACTIVE} and slot.allocation_id in self.counted
        ]

    @property
    def counted(self) -> set[str]:
        """The allocations that count as held: all except those on a TaskManager when it was drained."""
        return {each for job in (ONE, TWO, THREE) for each in self.slots._jobs.held(job).allocations}

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), lost=st.booleans())
    def deliver_request(self, data: st.DataObject, lost: bool) -> None:
        """Deliver a reservation, or let it time out (it may still have arrived)."""
        reserve = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        allocation = reserve.request.allocation_id
        try:
            self.tables[reserve.taskmanager].reserve(reserve.request)
        except SlotNotAvailable:
            self.slots.refused(allocation)
            return
        if lost:
            self.slots.refused(allocation)
        else:
            self.slots.acknowledged(allocation)
            self.tables[reserve.taskmanager].activate(allocation)

    @rule(job=st.sampled_from([ONE, TWO, THREE]))
    def end_job(self, job: str) -> None:
        """End a job and release its slots."""
        self.jobs.pop(job, None)
        self.releases += self.slots.release_job(job)

    @precondition(lambda self: self.releases)
    @rule(data=st.data(), lost=st.booleans())
    def deliver_release(self, data: st.DataObject, lost: bool) -> None:
        """Deliver a release, or lose it."""
        release = self.releases.pop(data.draw(st.integers(0, len(self.releases) - 1)))
        if not lost and not any(each.request.allocation_id == release.allocation_id for each in self.requests):
            self.tables[release.taskmanager].freed(release.allocation_id)
            self.slots.freed(release.allocation_id)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        """Let a TaskManager report its slots."""
        name = data.draw(st.sampled_from(sorted(self.tables)))
        for action in self.slots.report(name, self.tables[name].report()):
            if isinstance(action, Release):
                self.releases.append(action)

    @invariant()
    def no_job_holds_more_than_it_was_ever_given(self) -> None:
        """Each allocation id is unique, and every slot in use has an allocation and a job."""
        held = [s for each in self.slots.taskmanagers for s in each.slots.values() if s.state is not SlotState.FREE]
        allocations = [slot.allocation_id for slot in held]
        assert len(set(allocations)) == len(allocations)
        assert all(slot.allocation_id and slot.job_id for slot in held)

    @invariant()
    def free_means_free(self) -> None:
        """A free slot keeps nothing of its last holder, and a carved slot is never a usable one."""
        for each in self.slots.taskmanagers:
            for index, slot in each.slots.items():
                assert index == slot.index
                assert not (slot.usable and index >= each.defaults)
                if slot.state is SlotState.FREE:
                    assert (slot.allocation_id, slot.job_id, slot.acknowledged) == ("", "", False)

    @invariant()
    def what_is_known_by_index_is_what_a_search_finds(self) -> None:
        """The indexes used for decisions always match what a full search finds."""
        with_room = {each.name: free_of(each) for each in self.slots.taskmanagers if not each.draining}
        with_room = {name: free for name, free in with_room.items() if free.cores and free.memory_mb}
        assert self.slots._capacity.sizes() == with_room
        assert self.slots._sizes == Counter(each.total for each in self.slots.taskmanagers)
        for job in (ONE, TWO, THREE):
            held = self.slots._jobs.held(job)
            mine = [
                (each.name, slot)
                for each in self.slots.taskmanagers
                for slot in each.slots.values()
                if slot.allocation_id in held.allocations
            ]
            assert held.spread == Counter(name for name, _ in mine)
            assert held.by_profile == Counter(slot.profile for _, slot in mine)
            allocated = {
                slot.allocation_id: each.draining or slot.allocation_id in self.moved
                for each in self.slots.taskmanagers
                for slot in each.slots.values()
                if slot.job_id == job and slot.state in {SlotState.ALLOCATED, SlotState.ACTIVE}
            }
            assert held.allocations == {each for each, moved in allocated.items() if not moved}

    def teardown(self) -> None:
        """Check that records and TaskManagers agree once messages arrive again, with no free slot withheld."""
        for rounds in range(MAX_REPORTS + 4):
            if rounds >= 4 and not self.requests and not self.slots._refusals:
                break
            for reserve in self.requests:
                try:
                    self.tables[reserve.taskmanager].reserve(reserve.request)
                    self.slots.acknowledged(reserve.request.allocation_id)
                except SlotNotAvailable:
                    self.slots.refused(reserve.request.allocation_id)
            self.requests = []
            for name, table in self.tables.items():
                for action in self.slots.report(name, table.report()):
                    if isinstance(action, Release):
                        table.freed(action.allocation_id)
                        self.slots.freed(action.allocation_id)
            self.decide()
        assert self.requests == []
        for each in self.slots.taskmanagers:
            truth = {status.slot: status.allocation_id for status in self.tables[each.name].report().slots}
            assert {slot.index: slot.allocation_id for slot in each.slots.values()} == truth
            assert not any(slot.state is SlotState.RELEASING for slot in each.slots.values()), "a release was forgotten"
            assert each.free_total == self.tables[each.name].free


def free_of(taskmanager: TaskManagerSlots) -> SlotProfile:
    """Return the free capacity of a TaskManager, computed without any index."""
    free = taskmanager.total
    for slot in taskmanager.slots.values():
        free = free if slot.state is SlotState.FREE else free.less(slot.profile)
    return free


SlotModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestSlotModel = SlotModel.TestCase


def request(slot: int, allocation: str, job: str = ONE, profile: SlotProfile = SMALL) -> SlotRequest:
    """Return a reservation as the ResourceManager sends it."""
    return SlotRequest(
        slot=slot,
        allocation_id=allocation,
        job_id=job,
        jobmaster_endpoint="jobmaster/x",
        jobmaster_token=b"t",
        profile=profile,
    )


def test_a_taken_slot_cannot_be_reserved_and_a_repeated_request_is_idempotent() -> None:
    table = SlotTable(1, SMALL)
    assert table.reserve(request(0, "a"))
    assert not table.reserve(request(0, "a"))
    with pytest.raises(SlotNotAvailable, match="ALLOCATED"):
        table.reserve(request(0, "b"))
    with pytest.raises(SlotNotAvailable, match="no slot 1024"):
        table.reserve(request(1024, "c"))
    table.release("a")
    with pytest.raises(SlotNotAvailable, match="RELEASING"):
        table.reserve(request(0, "b"))
    table.freed("a")
    assert table.reserve(request(0, "b"))


def test_a_taskmanager_carves_no_slot_beyond_its_resources() -> None:
    table = SlotTable(2, SMALL, SlotProfile(cores=3, memory_mb=2048))
    assert table.reserve(request(9, "a", profile=MEDIUM))
    with pytest.raises(SlotNotAvailable, match="cannot be carved"):
        table.reserve(request(10, "b", profile=MEDIUM))
    with pytest.raises(SlotNotAvailable, match="default slot"):
        table.reserve(request(0, "b", profile=MEDIUM))
    with pytest.raises(SlotNotAvailable, match="cannot be carved"):
        table.reserve(request(11, "b", profile=SlotProfile(cores=0, memory_mb=1)))
    assert table.reserve(request(0, "b"))
    with pytest.raises(SlotNotAvailable, match="cannot be carved"):
        table.reserve(request(1, "c"))
    assert [status.profile for status in table.report().slots] == [None, None, MEDIUM]
    table.freed("a")
    assert len(table.report().slots) == 2
    assert table.reserve(request(1, "c"))


# --- queues ---------------------------------------------------------------------------------------------------

QUEUES = SchedulingConfig(
    queues=(QueueConfig(name="a", weight=3), QueueConfig(name="b", max_slots_per_user=2, maximum=0.5))
)


def sharing() -> SlotManager:
    """Return a slot manager whose slots are shared by two queues."""
    numbers = itertools.count(1)
    return SlotManager(lambda: f"alloc-{next(numbers)}", scheduling=QUEUES)


def in_queue(job_id: str, queue: str, count: int, *, owner: str = "", profile: SlotProfile = SMALL) -> SlotRequirement:
    """A requirement of a job in a queue."""
    return msgspec.structs.replace(wants(job_id, count, profile, owner=owner), queue=queue)


def test_queues_share_slots_by_weights_whichever_job_came_first() -> None:
    slots = sharing()
    slots.register("tm-1", "h", 8, SMALL)
    slots.require(in_queue(ONE, "b", 8, owner="bob"))
    slots.require(in_queue(TWO, "b", 8, owner="ann"))
    slots.require(in_queue(THREE, "a", 5))
    assert Counter(each.request.job_id for each in slots.decide()) == {ONE: 2, TWO: 1, THREE: 5}
    assert slots.decide() == []
    assert (
        slots.reasons().pending(ONE)
        == "2 of 8 slots: queue b: the jobs of bob hold the 2 slots that one user may have in it"
    )
    assert slots.reasons().pending(TWO) == "1 of 8 slots: all fitting slots are in use; queue b has 38% of the cluster"
    assert slots.unmet() == [(SMALL, 0), (SMALL, 1)]


def test_a_queue_at_its_maximum_leaves_slots_free() -> None:
    slots = sharing()
    slots.register("tm-1", "h", 4, SMALL)
    slots.require(in_queue(ONE, "b", 2, owner="bob"))
    slots.require(in_queue(TWO, "b", 2, owner="ann"))
    assert len(slots.decide()) == 2
    assert slots.reasons().pending(ONE).endswith("queue b: its jobs hold 50% of the cluster, and may have 50%")


def test_slots_that_a_new_leader_finds_in_use_count_for_their_queue() -> None:
    slots = sharing()
    slots.register("tm-1", "h", 4, SMALL)
    slots.admit("tm-1", report(*((SlotState.ACTIVE, f"old-{i}") for i in range(2))).slots)
    slots.require(in_queue(ONE, "a", 0))  # its JobMaster goes on, and wants nothing yet
    assert slots.shares().held("a") == (2, 0.5)
    slots.release_job(ONE)
    assert slots.shares().held("a") == (0, 0.0)


def test_a_large_slot_of_a_queue_does_not_starve() -> None:
    """The TaskManager that is nearest to holding the large slot is kept for it, as without queues."""
    slots = sharing()
    slots.register("tm-1", "h", 0, SMALL, SlotProfile(cores=4, memory_mb=8192))
    slots.require(in_queue(ONE, "a", 1))
    first = slots.decide()[0].request.allocation_id
    slots.require(in_queue(TWO, "a", 1, profile=LARGE))
    slots.require(in_queue(THREE, "b", 1))
    assert [each.request.job_id for each in slots.decide()] == [THREE]  # it has the smaller share
    slots.require(in_queue(THREE, "b", 3))
    assert slots.decide() == []
    assert "kept for another job" in slots.reasons().pending(THREE)
    assert first


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from([ONE, TWO, THREE]), st.integers(0, 5), st.sampled_from(["ann", "bob"])), max_size=12
    ),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_a_single_job_in_a_queue_gets_the_same_slots_as_without_queues(
    wishes: list[tuple[str, int, str]], size: int, most: int
) -> None:
    """Sharing does not matter for a single job: it gets as many slots, on the same TaskManagers."""
    numbers = itertools.count(1)
    queue = SchedulingConfig(queues=(QueueConfig(name="a"),))
    plain = manager(most=most)
    fair = SlotManager(lambda: f"alloc-{next(numbers)}", max_slots_per_user=most, scheduling=queue)
    for slots in (plain, fair):
        slots.register("tm-1", "h", size, SMALL)
        slots.register("tm-2", "h", size, SMALL)
    for _, count, owner in wishes:
        given_to = [[each.taskmanager for each in _decided(slots, count, owner)] for slots in (plain, fair)]
        assert Counter(given_to[0]) == Counter(given_to[1])


def _decided(slots: SlotManager, count: int, owner: str) -> list[Reserve]:
    slots.require(in_queue(ONE, "a", count, owner=owner))
    return slots.decide()


def test_a_job_that_ends_gives_back_what_an_undone_drain_had_taken() -> None:
    slots = manager()
    slots.register("tm", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    slots.acknowledged(reserve.request.allocation_id)
    slots.drain("tm")
    slots.drain("tm", draining=False)
    assert slots.release_job(ONE) == [Release("tm", reserve.request.allocation_id)]
