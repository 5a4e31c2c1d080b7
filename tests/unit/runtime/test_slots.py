"""The ResourceManager's slots: decisions, reports, losses, and a model that checks them against each other."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.jobmanager.slots import AllocationLost, Release, Requirement, Reserve, Slot, SlotManager
from runtime.messages import SlotProfile, SlotReport, SlotRequest, SlotState, SlotStatus
from runtime.taskmanager.errors import SlotNotAvailable
from runtime.taskmanager.slot_table import SlotTable

SMALL = SlotProfile(cores=1, memory_mb=512)
LARGE = SlotProfile(cores=4, memory_mb=8192)
ONE, TWO = "a" * 32, "b" * 32


def manager() -> SlotManager:
    """One with predictable allocation ids."""
    numbers = itertools.count(1)
    return SlotManager(lambda: f"alloc-{next(numbers)}")


def wants(job_id: str, count: int, profile: SlotProfile = SMALL) -> Requirement:
    """A requirement of ``job_id``."""
    return Requirement(job_id, count, profile, f"jobmaster/{job_id}", b"token")


def report(*statuses: tuple[SlotState, str]) -> SlotReport:
    """A report of slots 0, 1, …"""
    return SlotReport(
        slots=tuple(
            SlotStatus(slot=i, state=state, allocation_id=allocation, job_id=ONE if allocation else "")
            for i, (state, allocation) in enumerate(statuses)
        )
    )


def states(slots: SlotManager, name: str = "tm-1") -> list[SlotState]:
    """States of the slots of a TaskManager."""
    return next([slot.state for slot in each.slots] for each in slots.taskmanagers if each.name == name)


def test_a_requirement_is_met_as_slots_appear() -> None:
    slots = manager()
    slots.require(wants(ONE, 3))
    assert slots.decide() == []
    assert "no TaskManager" in slots.pending_reason(ONE)
    slots.register("tm-1", "h1", 2, SMALL)
    assert len(slots.decide()) == 2
    assert slots.pending_reason(ONE) == "2 of 3 slots: all fitting slots are in use"
    slots.register("tm-2", "h2", 2, SMALL)
    assert len(slots.decide()) == 1
    assert slots.pending_reason(ONE) == ""
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
    assert slots.pending_reason(ONE) == ("0 of 1 slots: no slot has 4 cores and 8192 MiB, the largest has 1 and 512")


def test_a_refused_slot_is_left_alone_until_its_taskmanager_reports_it_free() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    slots.refused(reserve.request.allocation_id)
    assert slots.decide() == [], "asking again at once would loop"
    slots.report("tm-1", report((SlotState.FREE, "")))
    assert len(slots.decide()) == 1


def test_a_lost_taskmanager_costs_its_jobs_their_slots_and_they_get_others() -> None:
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


def test_a_released_slot_is_given_away_only_when_it_is_confirmed_free() -> None:
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


def test_what_nobody_knows_is_released() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    assert slots.report("tm-1", report((SlotState.ACTIVE, "stranger"))) == [Release("tm-1", "stranger")]
    assert states(slots) == [SlotState.RELEASING]
    assert slots.report("tm-1", report((SlotState.FREE, ""))) == []
    assert states(slots) == [SlotState.FREE]


def test_a_report_that_crossed_the_request_does_not_cost_the_slot() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    assert slots.report("tm-1", report((SlotState.FREE, ""))) == []
    slots.acknowledged(reserve.request.allocation_id)
    assert slots.report("tm-1", report((SlotState.ACTIVE, reserve.request.allocation_id))) == []
    assert states(slots) == [SlotState.ACTIVE]


def test_a_slot_that_its_taskmanager_gave_up_is_told_to_the_job() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    slots.acknowledged(reserve.request.allocation_id)
    assert slots.report("tm-1", report((SlotState.FREE, ""))) == [AllocationLost(ONE, reserve.request.allocation_id)]
    assert len(slots.decide()) == 1


def test_a_release_that_got_lost_is_repeated_with_the_next_report() -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    slots.require(wants(ONE, 1))
    (reserve,) = slots.decide()
    allocation = reserve.request.allocation_id
    slots.acknowledged(allocation)
    slots.release(allocation)
    assert slots.report("tm-1", report((SlotState.ACTIVE, allocation))) == [Release("tm-1", allocation)]


@pytest.mark.parametrize("index", [-1, 5])
def test_a_report_of_a_slot_that_is_not_there_is_ignored(index: int) -> None:
    slots = manager()
    slots.register("tm-1", "h", 1, SMALL)
    strange = SlotReport(slots=(SlotStatus(slot=index, state=SlotState.ACTIVE, allocation_id="x", job_id=ONE),))
    assert slots.report("tm-1", strange) == []
    assert slots.report("nobody", strange) == []


class SlotModel(RuleBasedStateMachine):
    """SlotManager and real SlotTables, joined by messages that are delivered late, or get lost."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = manager()
        self.tables: dict[str, SlotTable] = {}
        self.requests: list[Reserve] = []
        self.releases: list[Release] = []
        self.jobs: dict[str, int] = {}
        self.profiles: dict[str, SlotProfile] = {}

    @initialize()
    def one_taskmanager(self) -> None:
        """Start with something to allocate."""
        self.register("tm-1", 2)

    @rule(
        name=st.sampled_from(["tm-1", "tm-2", "tm-3"]),
        count=st.integers(1, 3),
        profile=st.sampled_from([SMALL, LARGE]),
    )
    def register(self, name: str, count: int, profile: SlotProfile = SMALL) -> None:
        """A TaskManager (re-)registers with empty slots; messages to its earlier life are void."""
        self.slots.register(name, "h", count, profile)
        self.tables[name] = SlotTable(count)
        self.drop(name)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A TaskManager dies."""
        name = data.draw(st.sampled_from(sorted(self.tables)))
        self.slots.lost(name)
        del self.tables[name]
        self.drop(name)

    def drop(self, name: str) -> None:
        """Nothing that was on its way to ``name`` arrives."""
        self.requests = [each for each in self.requests if each.taskmanager != name]
        self.releases = [each for each in self.releases if each.taskmanager != name]

    @rule(job=st.sampled_from([ONE, TWO]), count=st.integers(0, 5), profile=st.sampled_from([SMALL, LARGE]))
    def require(self, job: str, count: int, profile: SlotProfile) -> None:
        """A job states a total, and may change its mind."""
        self.jobs[job] = count
        self.profiles[job] = profile
        self.slots.require(wants(job, count, profile))
        self.decide()

    @rule()
    def decide(self) -> None:
        """The ResourceManager acts: it gives what a search through everything would give, and no more."""
        before = Counter(each.job_id for each in self.held())
        room = {each.name: (sum(slot.usable for slot in each.slots), each.profile) for each in self.slots.taskmanagers}
        reserved = self.slots.decide()
        self.requests += reserved
        given = Counter(each.request.job_id for each in reserved)
        for each in reserved:
            free, profile = room[each.taskmanager]
            assert profile.fits(self.profiles[each.request.job_id])
            room[each.taskmanager] = (free - 1, profile)
        assert all(free >= 0 for free, _ in room.values())
        for job, count in self.jobs.items():
            assert given[job] <= max(0, count - before[job]), "more than was asked for"
            if before[job] + given[job] < count:
                assert not any(free and profile.fits(self.profiles[job]) for free, profile in room.values())

    def held(self) -> list[Slot]:
        """The slots that count for a job."""
        return [
            slot
            for each in self.slots.taskmanagers
            for slot in each.slots
            if slot.state in {SlotState.ALLOCATED, SlotState.ACTIVE}
        ]

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), lost=st.booleans())
    def deliver_request(self, data: st.DataObject, lost: bool) -> None:
        """A reservation arrives, or it times out (then it may still have arrived)."""
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

    @rule(job=st.sampled_from([ONE, TWO]))
    def end_job(self, job: str) -> None:
        """A job is over."""
        self.jobs.pop(job, None)
        self.releases += self.slots.release_job(job)

    @precondition(lambda self: self.releases)
    @rule(data=st.data(), lost=st.booleans())
    def deliver_release(self, data: st.DataObject, lost: bool) -> None:
        """A release arrives, or gets lost."""
        release = self.releases.pop(data.draw(st.integers(0, len(self.releases) - 1)))
        if not lost and not any(each.request.allocation_id == release.allocation_id for each in self.requests):
            self.tables[release.taskmanager].freed(release.allocation_id)
            self.slots.freed(release.allocation_id)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        """A TaskManager reports."""
        name = data.draw(st.sampled_from(sorted(self.tables)))
        for action in self.slots.report(name, self.tables[name].report()):
            if isinstance(action, Release):
                self.releases.append(action)

    @invariant()
    def no_job_holds_more_than_it_was_ever_given(self) -> None:
        """Allocation ids are unique, and a job that is over holds none."""
        held = [slot for each in self.slots.taskmanagers for slot in each.slots if slot.state is not SlotState.FREE]
        allocations = [slot.allocation_id for slot in held]
        assert len(set(allocations)) == len(allocations)
        assert all(slot.allocation_id and slot.job_id for slot in held)

    @invariant()
    def free_means_free(self) -> None:
        """A free slot carries nothing over from its last holder."""
        for each in self.slots.taskmanagers:
            for slot in each.slots:
                if slot.state is SlotState.FREE:
                    assert (slot.allocation_id, slot.job_id, slot.acknowledged) == ("", "", False)

    @invariant()
    def what_is_known_by_index_is_what_a_search_finds(self) -> None:
        """Decisions look into indexes, which every change of a slot has to keep."""
        with_room = {each.name for each in self.slots.taskmanagers if any(slot.usable for slot in each.slots)}
        assert {name for names in self.slots._room.values() for name in names} == with_room
        for profile, names in self.slots._room.items():
            assert names
            assert all(each.profile == profile for each in names.values())
        for job in (ONE, TWO):
            held = self.slots._held(job)
            owners = Counter(
                each.name
                for each in self.slots.taskmanagers
                for slot in each.slots
                if slot.allocation_id in held.allocations
            )
            assert held.spread == owners
            assert held.allocations == {slot.allocation_id for slot in self.held() if slot.job_id == job}

    def teardown(self) -> None:
        """When messages arrive again, records and TaskManagers agree, and no free slot is withheld."""
        for _ in range(4):
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
            self.requests = self.slots.decide()
        assert self.requests == []
        for each in self.slots.taskmanagers:
            truth = self.tables[each.name].report().slots
            assert [slot.allocation_id for slot in each.slots] == [status.allocation_id for status in truth]
            assert not any(slot.state is SlotState.RELEASING for slot in each.slots), "a release was forgotten"
        for job in self.jobs:
            if self.slots.pending_reason(job):
                assert not any(each.free and each.profile.fits(self.profiles[job]) for each in self.slots.taskmanagers)


SlotModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSlotModel = SlotModel.TestCase


def request(slot: int, allocation: str, job: str = ONE) -> SlotRequest:
    """A reservation as the ResourceManager sends it."""
    return SlotRequest(
        slot=slot, allocation_id=allocation, job_id=job, jobmaster_endpoint="jobmaster/x", jobmaster_token=b"t"
    )


def test_a_taken_slot_cannot_be_reserved_and_the_same_request_twice_is_one() -> None:
    table = SlotTable(1)
    assert table.reserve(request(0, "a"))
    assert not table.reserve(request(0, "a"))
    with pytest.raises(SlotNotAvailable, match="ALLOCATED"):
        table.reserve(request(0, "b"))
    with pytest.raises(SlotNotAvailable, match="no slot 1"):
        table.reserve(request(1, "c"))
    table.release("a")
    with pytest.raises(SlotNotAvailable, match="RELEASING"):
        table.reserve(request(0, "b"))
    table.freed("a")
    assert table.reserve(request(0, "b"))
