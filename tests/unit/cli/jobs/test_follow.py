"""Waiting for a job while the cluster is unavailable for some time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from sluice.cli.errors import AwayError, UnreachableError, exit_code_of
from sluice.cli.jobs.follow import Follower
from sluice.client.patient_reader import OUTAGE_SECONDS, STOPPED_SECONDS

JOB = "/v1/jobs/ab"
LOGS = f"{JOB}/logs"
RUNNING = {"id": "ab", "state": "RUNNING"}
FINISHED = {"id": "ab", "state": "FINISHED"}
AWAY = AwayError("GET: the cluster cannot answer now")


class Cluster:
    """A fake gateway that answers from lists, one for job details and one for output.

    It repeats the last answer of a list for ever. Time passes only when somebody waits.
    """

    def __init__(self, details: Sequence[Any], output: Sequence[Any] = ("",)) -> None:
        self.answers = {JOB: list(details), LOGS: list(output)}
        self.now = 0.0
        self.asked = 0

    async def get(self, path: str, **query: str | int) -> Any:
        self.asked += 1
        rest = self.answers[path]
        answer = rest.pop(0) if len(rest) > 1 else rest[0]
        if isinstance(answer, Exception):
            raise answer
        if path == JOB:
            return answer
        return {"data": answer, "next_offset": int(query["offset"]) + len(answer), "end": True}

    async def newer(self, path: str, version: str, seconds: float) -> tuple[Any, str]:
        """Answer without a version, like an old gateway or one behind a proxy that drops versions."""
        return await self.get(path), ""

    async def wait(self, seconds: float) -> None:
        self.now += seconds


class Versions(Cluster):
    """A fake gateway that waits for changes; versions are numbers."""

    def __init__(self, changes: Sequence[tuple[float, Any]]) -> None:
        super().__init__([], [""])
        self.changes = list(changes)
        self.requests: list[tuple[str, float]] = []

    async def newer(self, path: str, version: str, seconds: float) -> tuple[Any, str]:
        self.requests.append((version, self.now))
        end = self.now + seconds
        while True:
            latest, (_, job) = [each for each in enumerate(self.changes, 1) if each[1][0] <= self.now][-1]
            if str(latest) != version:
                if isinstance(job, Exception):
                    del self.changes[latest - 1]
                    raise job
                return job, str(latest)
            coming = [when for when, _ in self.changes if self.now < when <= end]
            self.now = min(coming, default=end)
            if not coming:
                return None, version


def follower(cluster: Cluster) -> tuple[Follower, io.StringIO, list[str]]:
    said, written = io.StringIO(), list[str]()
    made = Follower(cluster, "ab", Console(file=said), written.append, clock=lambda: cluster.now, pause=cluster.wait)
    return made, said, written


async def test_waiting_for_a_job_continues_while_the_cluster_is_unavailable() -> None:
    cluster = Cluster([RUNNING, AWAY, AWAY, RUNNING, FINISHED], ["one ", AWAY, "two ", "three"])
    waiting, said, written = follower(cluster)

    assert await waiting.until_end() == FINISHED

    assert "".join(written) == "one two three"
    assert said.getvalue().count("still waiting") == 2


async def test_the_end_of_a_job_is_noticed_immediately() -> None:
    cluster = Versions([(0.0, RUNNING), (7.35, FINISHED)])
    waiting, _, _ = follower(cluster)

    assert await waiting.until_end() == FINISHED

    assert cluster.now == pytest.approx(7.35)
    assert [version for version, _ in cluster.requests] == ["", *["1"] * (len(cluster.requests) - 1)]
    assert len(cluster.requests) < 10


async def test_a_constantly_changing_job_is_polled_at_a_limited_rate() -> None:
    cluster = Versions([*((number / 1000, {**RUNNING, "attempt": 1}) for number in range(1000)), (1.0, FINISHED)])
    waiting, _, _ = follower(cluster)

    assert await waiting.until_end() == FINISHED

    assert len(cluster.requests) <= 13


async def test_the_known_version_is_sent_again_after_an_outage() -> None:
    cluster = Versions([(0.0, RUNNING), (2.0, AWAY), (3.0, FINISHED)])
    waiting, said, _ = follower(cluster)

    assert await waiting.until_end() == FINISHED

    assert said.getvalue().count("still waiting") == 1
    assert {version for version, _ in cluster.requests} == {"", "1"}


async def test_waiting_gives_up_after_a_long_outage() -> None:
    cluster = Cluster([RUNNING, AWAY])
    waiting, said, _ = follower(cluster)

    with pytest.raises(AwayError, match=r"no longer watching job ab after 120 s.*cannot answer now.*jobs show ab"):
        await waiting.until_end()

    assert OUTAGE_SECONDS <= cluster.now < OUTAGE_SECONDS + 5
    assert said.getvalue().count("still waiting, at most 120 s") == 1


async def test_waiting_gives_up_sooner_for_a_stopped_cluster_than_for_an_outage() -> None:
    cluster = Cluster([RUNNING, AWAY])
    waiting, _, _ = follower(cluster)
    waiting.stopped = lambda: cluster.now >= 3

    with pytest.raises(AwayError, match=r"was stopped before job ab ended.*sluice up.*jobs show ab") as ended:
        await waiting.until_end()

    assert exit_code_of(ended.value) == 3
    assert STOPPED_SECONDS <= cluster.now < STOPPED_SECONDS + 5


async def test_waiting_survives_a_quick_restart_of_the_cluster() -> None:
    cluster = Cluster([RUNNING, *[AWAY] * 20, RUNNING, FINISHED])
    waiting, _, _ = follower(cluster)
    waiting.stopped = lambda: 1 <= cluster.now < 6

    assert await waiting.until_end() == FINISHED


async def test_short_outages_do_not_add_up() -> None:
    cluster = Cluster([RUNNING, *[AWAY, AWAY, RUNNING] * 200, FINISHED])
    waiting, _, _ = follower(cluster)

    assert await waiting.until_end() == FINISHED
    assert cluster.now > OUTAGE_SECONDS


async def test_a_refused_token_ends_the_waiting_immediately() -> None:
    cluster = Cluster([UnreachableError("the token is revoked")])
    waiting, _, _ = follower(cluster)

    with pytest.raises(UnreachableError, match="revoked"):
        await waiting.until_end()

    assert cluster.asked == 1


async def test_the_output_of_every_attempt_is_written_in_order() -> None:
    outputs = {
        "attempt-1.driver.stdout": "first ",
        "attempt-2.driver.stdout": "second ",
        "attempt-3.driver.stdout": "third",
    }

    class Attempts(Cluster):
        async def get(self, path: str, **query: str | int) -> Any:
            if path == JOB:
                return await super().get(path, **query)
            text, offset = outputs[str(query["source"])], int(query["offset"])
            return {"data": text[offset:], "next_offset": len(text), "end": True}

    restarting = {**RUNNING, "state": "RESTARTING", "attempt": 1, "pending_reason": "attempt 1 failed"}
    waiting, said, written = follower(Attempts([{**RUNNING, "attempt": 1}, restarting, {**FINISHED, "attempt": 3}]))
    await waiting.until_end()
    assert "".join(written) == "first second third"
    assert "FINISHED" in said.getvalue()


async def test_progress_on_a_terminal_shows_stages_and_tasks() -> None:
    moving = {"stages_total": 4, "stages_finished": 1, "tasks_total": 20, "tasks_finished": 7}
    cluster = Cluster([{**RUNNING, "progress": moving}, {**FINISHED, "progress": moving}])
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=140, color_system=None)
    await Follower(cluster, "ab", console, lambda _: None, clock=lambda: cluster.now, pause=cluster.wait).until_end()
    assert "7/20 tasks · 1/4 stages" in said.getvalue()
    assert "stages," not in said.getvalue()


async def test_progress_on_a_terminal_counts_failed_stages_separately() -> None:
    moving = {"stages_total": 4, "stages_finished": 1, "stages_failed": 2, "tasks_total": 20, "tasks_finished": 7}
    cluster = Cluster([{**RUNNING, "progress": moving}, {**FINISHED, "progress": moving}])
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=140, color_system=None)
    await Follower(cluster, "ab", console, lambda _: None, clock=lambda: cluster.now, pause=cluster.wait).until_end()
    assert "1/4 stages, 2 failed" in said.getvalue()
