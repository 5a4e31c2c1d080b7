"""Limits on a job's concurrent connections and on its new ones per second; other jobs are unaffected."""

from __future__ import annotations

from collections import Counter

from sluice.runtime.egress import BoxId, Destination, EgressJournal, JobLimits
from sluice.runtime.egress.job_limits import BURST_SECONDS, MAX_JOBS, TOO_FAST, TOO_MANY


class World:
    def __init__(self, *, max_open: int = 1_000_000, per_second: int = 10) -> None:
        self.now = 0.0
        self.open: Counter[str] = Counter()
        self.limits = JobLimits(self.open.__getitem__, max_open=max_open, per_second=per_second, clock=lambda: self.now)

    def tries(self, job_id: str, times: int) -> Counter[str]:
        return Counter(self.limits.objection(job_id) for _ in range(times))


def test_the_open_connections_of_each_job_are_limited() -> None:
    world = World(max_open=2)
    world.open["j1"] = 1
    assert world.limits.objection("j1") == ""
    world.open["j1"] = 2
    assert world.limits.objection("j1") == TOO_MANY
    assert world.limits.objection("j2") == ""


def test_the_new_connections_of_each_job_are_limited_per_second_after_a_burst() -> None:
    world = World(per_second=10)
    assert world.tries("j1", 200) == {"": 10 * BURST_SECONDS, TOO_FAST: 200 - 10 * BURST_SECONDS}
    assert world.tries("j2", 1) == {"": 1}
    allowed = 0
    for _ in range(100):
        world.now += 0.1
        allowed += world.tries("j1", 5)[""]
    assert 99 <= allowed <= 101
    world.now += 3600
    assert world.tries("j1", 200)[""] == 10 * BURST_SECONDS


def test_the_number_of_remembered_jobs_is_bounded() -> None:
    world = World()
    for number in range(2 * MAX_JOBS):
        world.limits.objection(str(number))
    assert len(world.limits._left) == MAX_JOBS


def test_the_journal_counts_open_connections_of_each_job() -> None:
    journal = EgressJournal()
    to = Destination("api.example.com", "", 443)
    made = [journal.opened(BoxId(job, 1, "driver"), to, end=lambda _: None) for job in ("j1", "j1", "j2")]
    assert (journal.open_of("j1"), journal.open_of("j2"), journal.open_of("j3")) == (2, 1, 0)
    for each in made:
        each.closed()
        each.closed()
    assert (journal.open_of("j1"), journal.open_of("j2")) == (0, 0)
