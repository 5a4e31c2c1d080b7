"""Decisions of the ShuffleManager: who gets a shuffle, which workers count, how long a job is kept."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.runtime.shuffle.control_plane.errors import (
    ForeignJob,
    JobUnknown,
    ShuffleQuotaExceeded,
    WorkerUnknown,
)
from sluice.runtime.shuffle.control_plane.messages import (
    DiskReport,
    JobReport,
    WorkerRegistration,
    WorkerReport,
    WorkerState,
)
from sluice.runtime.shuffle.manager.hand_overs import HandOvers
from sluice.runtime.shuffle.manager.job_store import ShuffleJobStore
from sluice.runtime.shuffle.manager.jobs import (
    Job,
    JobTable,
    Quotas,
    Shuffle,
)
from sluice.runtime.shuffle.manager.placement import Candidate, choose
from sluice.runtime.shuffle.manager.successor_choice import shuffles_on, successor
from sluice.runtime.shuffle.manager.workers import (
    FORGET_LOST_SECONDS,
    HINT_SECONDS,
    RETURNS,
    RETURNS_SECONDS,
    WorkerTable,
)

GIB = 1 << 30
TIMEOUT = 10.0
LEASE = 120.0


class Clock:
    """A clock that the tests control."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def registration(name: str, *, instance: str = "1", host: str = "h") -> WorkerRegistration:
    return WorkerRegistration(name=name, host=host, port=7000, instance=instance)


def disk(free: int, total: int = 100 * GIB, **options: object) -> DiskReport:
    return DiskReport(path="/d", total=total, free=free, **options)  # type: ignore[arg-type]  # flags of a test


# --- who gets a shuffle -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "partitions", "replicas", "expected"),
    [
        pytest.param([], 4, 1, [], id="nobody"),
        pytest.param([Candidate("a", "h")], 4, 2, [], id="too few for the replicas"),
        pytest.param([Candidate("a", "h"), Candidate("b", "h")], 1, 1, ["a"], id="one partition, one worker"),
        pytest.param([Candidate("a", "h"), Candidate("b", "h")], 1, 2, ["a", "b"], id="one partition, two replicas"),
        pytest.param([Candidate("a", "h", disk_used=0.9), Candidate("b", "h")], 1, 1, ["b"], id="fuller disks"),
        pytest.param([Candidate("a", "h", memory_used=0.9), Candidate("b", "h")], 1, 1, ["b"], id="fuller memory"),
        pytest.param([Candidate("a", "h", bytes_kept=9), Candidate("b", "h")], 1, 1, ["b"], id="keeps more"),
        pytest.param([Candidate("a", "h", avoided=True), Candidate("b", "h")], 9, 1, ["b"], id="avoided"),
        pytest.param([Candidate("a", "h", avoided=True)], 9, 1, ["a"], id="avoided, but there is no other"),
        pytest.param(
            [Candidate("a", "h", avoided=True), Candidate("b", "h")], 9, 2, ["b", "a"], id="avoided, but needed"
        ),
        pytest.param(
            [Candidate(n, h) for n, h in ("a1", "b1", "c2", "d2")], 9, 2, ["a", "c", "b", "d"], id="hosts take turns"
        ),
        pytest.param([Candidate(name, "h") for name in "abcdef"], 99, 1, ["a", "b", "c", "d"], id="at most the limit"),
    ],
)
def test_workers_are_chosen_for_a_shuffle(
    candidates: list[Candidate], partitions: int, replicas: int, expected: list[str]
) -> None:
    assert list(choose(candidates, {}, partitions=partitions, replicas=replicas, limit=4)) == expected


def test_shuffles_that_begin_at_the_same_time_are_spread() -> None:
    assigned: Counter[str] = Counter()
    candidates = [Candidate(name, "h") for name in "abcd"]
    for _ in range(40):
        for name in choose(candidates, assigned, partitions=2, replicas=1, limit=8):
            assigned[name] += 2
    assert set(assigned.values()) == {40}


@given(
    candidates=st.lists(
        st.builds(
            Candidate,
            st.text("abcdefgh", min_size=1, max_size=3),
            st.sampled_from("123"),
            disk_used=st.floats(0, 1),
            memory_used=st.floats(0, 1),
            bytes_kept=st.integers(0, 1 << 50),
            avoided=st.booleans(),
        ),
        unique_by=lambda each: each.name,
        max_size=12,
    ),
    partitions=st.integers(1, 500),
    replicas=st.integers(1, 2),
    limit=st.integers(2, 8),
)
def test_chosen_workers_are_distinct_sufficient_and_within_the_limit(
    candidates: list[Candidate], partitions: int, replicas: int, limit: int
) -> None:
    names = choose(candidates, {}, partitions=partitions, replicas=replicas, limit=limit)
    assert len(set(names)) == len(names) <= limit
    assert (len(names) >= replicas) == (len(candidates) >= replicas)
    assert set(names) <= {each.name for each in candidates}
    willing = [each for each in candidates if not each.avoided]
    if len(willing) >= replicas:
        assert len(names) == max(replicas, min(limit, partitions, len(willing)))
        assert not {each.name for each in candidates if each.avoided} & set(names)


# --- workers ------------------------------------------------------------------------------------------


class Workers:
    """A worker table and its clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.table = WorkerTable(heartbeat_timeout=TIMEOUT, disk_reserve=GIB, clock=self.clock)

    def state(self, name: str = "w") -> WorkerState:
        return self.table.state(self.table.get(name))[0]

    def names(self, job_id: str = "j") -> list[str]:
        return [each.name for each in self.table.candidates(job_id) if not each.avoided]


def test_a_silent_worker_is_lost_once_and_back_when_it_registers() -> None:
    workers = Workers()
    workers.table.register(registration("w"))
    workers.clock.now += TIMEOUT + 1
    assert [each.name for each in workers.table.expired()] == ["w"]
    workers.table.lose("w", "silent")
    assert workers.table.expired() == []
    assert workers.state() is WorkerState.LOST
    with pytest.raises(WorkerUnknown):
        workers.table.heard("w", WorkerReport())
    workers.table.register(registration("w"))
    assert workers.names() == ["w"]


def test_a_worker_that_is_lost_for_very_long_is_forgotten() -> None:
    workers = Workers()
    workers.table.register(registration("w"))
    workers.table.lose("w", "gone")
    workers.clock.now += FORGET_LOST_SECONDS + 1
    workers.table.expired()
    assert workers.table.all == ()


def test_full_and_broken_disks_exclude_a_worker_until_one_has_room() -> None:
    workers = Workers()
    workers.table.register(registration("w"))
    broken = disk(50 * GIB, usable=False, error="Input/output error")
    for disks, state in (
        ((disk(GIB // 2),), WorkerState.EXCLUDED),
        ((broken,), WorkerState.EXCLUDED),
        ((broken, disk(GIB // 2)), WorkerState.EXCLUDED),
        ((broken, disk(2 * GIB)), WorkerState.ACTIVE),
        ((), WorkerState.ACTIVE),
    ):
        workers.table.heard("w", WorkerReport(disks=disks))
        assert workers.state() is state
    workers.table.heard("w", WorkerReport(disks=(broken,)))
    assert "Input/output error" in workers.table.state(workers.table.get("w"))[1]


def test_a_worker_reported_by_one_job_is_avoided_for_that_job_only() -> None:
    workers = Workers()
    workers.table.register(registration("w"))
    workers.table.hint("liar", ["w", "nobody"])
    assert workers.names("liar") == []
    assert workers.names("other") == ["w"]
    workers.table.hint("second", ["w"])
    assert workers.state() is WorkerState.EXCLUDED
    workers.clock.now += HINT_SECONDS + 1
    assert workers.names("liar") == ["w"]


def test_a_worker_that_comes_and_goes_is_excluded_for_a_while() -> None:
    workers = Workers()
    for number in range(RETURNS + 1):
        workers.table.register(registration("w", instance=str(number)))
        workers.clock.now += 1
    assert workers.state() is WorkerState.EXCLUDED
    workers.clock.now += RETURNS_SECONDS
    assert workers.state() is WorkerState.ACTIVE


def test_draining_lasts_until_a_new_instance_of_the_worker_registers() -> None:
    workers = Workers()
    workers.table.register(registration("w"))
    workers.table.drain("w")
    workers.table.heard("w", WorkerReport(jobs=(JobReport(job_id="j", bytes=1),)))
    assert workers.state() is WorkerState.DRAINING
    workers.table.heard("w", WorkerReport())
    assert workers.state() is WorkerState.DRAINING, "it said so before it was told"
    workers.table.heard("w", WorkerReport(draining=True, followed=1))
    assert workers.state() is WorkerState.DRAINING, "somebody follows what is written there"
    workers.table.heard("w", WorkerReport(draining=True))
    assert workers.state() is WorkerState.DRAINED
    workers.table.register(registration("w"))
    assert workers.state() is WorkerState.DRAINED
    workers.table.register(registration("w", instance="2"))
    assert workers.state() is WorkerState.ACTIVE


def test_a_worker_that_registers_again_has_no_allowed_jobs() -> None:
    workers = Workers()
    workers.table.register(registration("w")).allowed.add("j")
    assert workers.table.register(registration("w")).allowed == set()


# --- jobs ---------------------------------------------------------------------------------------------


def jobs(clock: Clock, quotas: Quotas | None = None) -> JobTable:
    return JobTable(lease=LEASE, quotas=quotas or Quotas(), clock=clock)


def test_a_job_is_accessible_to_its_owner_only() -> None:
    table = jobs(Clock())
    table.add(Job("j", "mine", b"k"))
    assert table.own("j", "mine") is not None
    with pytest.raises(ForeignJob):
        table.own("j", "theirs")
    assert table.own("other", "theirs") is None
    assert table.renew(["j"], "theirs") == ["j"]


def test_a_job_is_kept_as_long_as_its_lease_is_renewed() -> None:
    clock = Clock()
    table = jobs(clock)
    table.add(Job("j", "mine", b"k"))
    for _ in range(5):
        clock.now += LEASE - 1
        assert table.expired() == []
        assert table.renew(["j", "k"], "mine") == ["k"]
    clock.now += LEASE
    assert [job.job_id for job in table.expired()] == ["j"]
    assert table.get("j") is None
    table.check_open("j", "mine")


def test_a_released_job_stays_released() -> None:
    table = jobs(Clock())
    table.add(Job("j", "mine", b"k"))
    assert table.remove("j") is not None
    assert table.remove("j") is None
    with pytest.raises(JobUnknown):
        table.check_open("j", "mine")


@pytest.mark.parametrize(
    ("quotas", "kept", "refused"),
    [
        (Quotas(), {"j": 1 << 60}, False),
        (Quotas(job_bytes=10), {"j": 9, "k": 99}, False),
        (Quotas(job_bytes=10), {"j": 10}, True),
        (Quotas(cluster_bytes=10), {"j": 5, "theirs": 99}, False),
        (Quotas(cluster_bytes=10), {"j": 5, "k": 5}, True),
    ],
)
def test_a_job_over_its_own_or_the_cluster_quota_is_refused(
    quotas: Quotas, kept: dict[str, int], refused: bool
) -> None:
    table = jobs(Clock(), quotas)
    mine = table.add(Job("j", "mine", b"k"))
    table.add(Job("k", "mine", b"k"))
    table.add(Job("theirs", "theirs", b"k"))
    if refused:
        with pytest.raises(ShuffleQuotaExceeded):
            table.check_quota(mine, kept)
    else:
        table.check_quota(mine, kept)


class LivesOfJobs(RuleBasedStateMachine):
    """Compares the job table with a minimal model: live jobs, owners, leases and assigned workers."""

    JOBS = st.sampled_from("jkl")
    OWNERS = st.sampled_from(["mine", "theirs"])

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.table = jobs(self.clock)
        self.live: dict[str, tuple[str, float]] = {}
        self.placed: dict[tuple[str, int], tuple[int, tuple[str, ...]]] = {}
        self.released: set[str] = set()

    def _forget(self, job_id: str) -> None:
        del self.live[job_id]
        self.placed = {key: value for key, value in self.placed.items() if key[0] != job_id}

    @rule(job_id=JOBS, owner=OWNERS)
    def begin(self, job_id: str, owner: str) -> None:
        try:
            known = self.table.own(job_id, owner)
        except ForeignJob:
            assert self.live[job_id][0] != owner
            return
        if known is None:
            try:
                self.table.check_open(job_id, owner)
            except JobUnknown:
                assert job_id in self.released
                return
            assert job_id not in self.live
            self.table.add(Job(job_id, owner, b"k"))
            self.live[job_id] = (owner, self.clock.now + LEASE)

    @rule(
        job_id=JOBS,
        shuffle_number=st.integers(0, 3),
        partitions=st.integers(1, 9),
        workers=st.sets(st.sampled_from("ab")),
    )
    def place(self, job_id: str, shuffle_number: int, partitions: int, workers: set[str]) -> None:
        job = self.table.get(job_id)
        if job is not None:
            names = tuple(sorted(workers))
            self.table.place(job, shuffle_number, Shuffle(partitions, names))
            self.placed[job_id, shuffle_number] = (partitions, names)

    @rule(job_id=JOBS, shuffle_number=st.integers(0, 3))
    def forget_shuffle(self, job_id: str, shuffle_number: int) -> None:
        job = self.table.get(job_id)
        if job is not None:
            self.table.forget_shuffle(job, shuffle_number)
            self.placed.pop((job_id, shuffle_number), None)

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        unknown = set(self.table.renew("jkl", owner))
        assert unknown == {job for job in "jkl" if self.live.get(job, ("", 0.0))[0] != owner}
        for job_id in set("jkl") - unknown:
            self.live[job_id] = (owner, self.clock.now + LEASE)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.live)))
        assert self.table.remove(job_id) is not None
        self._forget(job_id)
        self.released.add(job_id)

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        over = {job.job_id for job in self.table.expired()}
        assert over == {job for job, (_, until) in self.live.items() if until <= self.clock.now}
        for job_id in over:
            self._forget(job_id)

    @invariant()
    def the_table_is_the_model(self) -> None:
        assert {job.job_id: job.owner for job in self.table.all} == {
            job: owner for job, (owner, _) in self.live.items()
        }
        assigned: Counter[str] = Counter()
        for partitions, workers in self.placed.values():
            assigned.update(dict.fromkeys(workers, partitions))
        assert {name: count for name, count in self.table.assigned.items() if count} == dict(assigned)


LivesOfJobs.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestLivesOfJobs = LivesOfJobs.TestCase


def test_the_keeper_of_a_workers_data_is_found_through_a_chain_of_successors() -> None:
    shuffle = Shuffle(4, ("w-1", "w-2"), {"w-1": "w-3", "w-3": "w-4"})
    assert [shuffle.keeper(name) for name in ("w-1", "w-2", "w-3")] == ["w-4", "w-2", "w-4"]
    shuffle.successors["w-4"] = "w-1"
    assert shuffle.keeper("w-1") in {"w-1", "w-3", "w-4"}, "a circle ends"


def test_a_successor_is_a_worker_without_a_replica_if_possible_and_stays_the_same() -> None:
    def candidates(*names: str) -> list[Candidate]:
        return [Candidate(name, "h") for name in names]

    shuffle = Shuffle(4, ("w-1", "w-2"))
    assert successor("w-1", shuffle, candidates("w-1", "w-2", "w-3"), {}) == "w-3"
    assert successor("w-1", shuffle, candidates("w-1", "w-2"), {}) == "w-2"
    assert successor("w-1", shuffle, candidates("w-1"), {}) == ""
    shuffle.successors["w-1"] = "w-4"
    assert successor("w-1", shuffle, candidates("w-1", "w-2", "w-3", "w-4"), {"w-4": 9}) == "w-4"
    assert successor("w-1", shuffle, candidates("w-1", "w-2", "w-3"), {}) == "w-3", "it is gone"


def test_shuffles_on_a_worker_include_those_it_took_over() -> None:
    job = Job("a" * 32, "owner", b"k" * 8)
    job.shuffles = {1: Shuffle(4, ("w-1",)), 2: Shuffle(4, ("w-2",), {"w-2": "w-1"}), 3: Shuffle(4, ("w-3",))}
    assert [each.number for each in shuffles_on("w-1", [job])] == [1, 2]


def test_shuffles_reported_by_workers_are_added_to_a_recovered_job() -> None:
    table = JobTable(lease=LEASE, quotas=Quotas())
    job = table.add(Job("a" * 32, "owner", b"k" * 8, recovered=True))
    table.place(job, 1, Shuffle(4, ("w-1",), {"w-1": "w-2"}))
    for number, worker in ((1, "w-1"), (1, "w-2"), (1, "w-3"), (1, "w-3"), (2, "w-1"), (2, "w-2")):
        table.add_reported(job, number, worker)
    assert job.shuffles == {1: Shuffle(4, ("w-1", "w-3"), {"w-1": "w-2"}), 2: Shuffle(0, ("w-1", "w-2"))}
    assert {name: count for name, count in table.assigned.items() if count} == {"w-1": 4, "w-3": 4}
    table.remove(job.job_id)
    assert not any(table.assigned.values())


def test_a_worker_that_registers_as_draining_is_drained_by_a_new_manager() -> None:
    table = WorkerTable(heartbeat_timeout=TIMEOUT, disk_reserve=GIB, clock=Clock())
    draining = WorkerRegistration(name="w-1", host="h", port=1, instance="1", draining=True)
    assert table.register(draining).drained
    table.drain("w-1", wanted=False)
    assert not table.register(draining).drained, "it has not heard of it yet"
    assert not table.register(registration("w-1", instance="2")).drained


def test_a_worker_is_drained_after_its_handover_and_active_when_draining_is_cancelled() -> None:
    clock = Clock()
    table = WorkerTable(heartbeat_timeout=TIMEOUT, disk_reserve=GIB, clock=clock)
    worker = table.register(registration("w-1"))
    table.heard("w-1", WorkerReport(jobs=(JobReport(job_id="a" * 32, bytes=10),)))
    table.drain("w-1")
    assert table.state(worker)[0] is WorkerState.DRAINING
    worker.handed_over = True
    assert table.state(worker) == (WorkerState.DRAINED, "it was asked to drain; other workers have all that it keeps")
    table.drain("w-1", wanted=False)
    assert (table.state(worker)[0], worker.handed_over) == (WorkerState.ACTIVE, False)


async def test_a_draining_worker_is_not_drained_before_its_first_report() -> None:
    """After a change of leaders, the manager does not know yet what it keeps."""
    clock = Clock()
    table = WorkerTable(heartbeat_timeout=TIMEOUT, disk_reserve=0, clock=clock)
    worker = table.register(WorkerRegistration(name="w", host="h", port=1, instance="1", draining=True))

    async def allow(_name: str, _job: Job) -> bool:
        return True

    moves = HandOvers(jobs(clock), table, {}, cast("ShuffleJobStore", None), allow)
    await moves.advance(worker)
    assert table.state(worker)[0] is WorkerState.DRAINING
    table.heard("w", WorkerReport(draining=True))
    await moves.advance(worker)
    assert table.state(worker)[0] is WorkerState.DRAINED
