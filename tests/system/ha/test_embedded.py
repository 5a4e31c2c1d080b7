"""A JobManager on one machine, killed at any instant.

The next JobManager of the same home continues its jobs.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

import aiohttp
import msgspec
import psutil
import pytest

from sluice.runtime.ha.config import HaConfig
from tests.system.ha.jobmanager_process import Death
from tests.system.ha.world import Master, World, eventually


def exit_of(master: Master) -> int | None:
    """Return the exit code of the JobManager's process; None while it runs."""
    assert master.process is not None
    return master.process.poll()


async def test_a_restarted_jobmanager_continues_its_jobs_without_a_new_attempt(world: World) -> None:
    world.start("jm-1")
    await world.until_up()
    await world.start_taskmanager("tm-1")
    job_id = await world.submit()
    await world.until(job_id, "RUNNING")
    await eventually(lambda: _ran(world, [1]), "the pipeline runs")
    await eventually(lambda: _executors(world, job_id, ["RUNNING"]), "the executor runs")
    before = await world.until(job_id, "RUNNING")
    world.masters["jm-1"].kill()
    world.start("jm-1")
    await world.until_up()
    job = await world.until(job_id, "RUNNING")
    await eventually(lambda: _executors(world, job_id, ["RUNNING"]), "the executor is known")
    after = await world.job(job_id)
    assert [each["id"] for each in after["executors"]] == [each["id"] for each in before["executors"]] == [1]
    world.flag.touch()
    await world.until(job_id, "FINISHED")
    world.masters["jm-1"].kill()
    world.start("jm-1")
    job = await world.until(job_id, "FINISHED")
    assert (job["attempt"], world.runs()) == (1, [1])


async def test_a_driver_whose_lease_has_expired_is_not_adopted_by_the_next_leader(world: World) -> None:
    """Nobody leads for longer than the lease: the driver ends itself, and the next leader starts another."""
    world.config = msgspec.structs.replace(world.config, ha=HaConfig(lease=2.0))
    world.start("jm-1")
    await world.until_up()
    await world.start_taskmanager("tm-1")
    job_id = await world.submit(executors=0)
    await eventually(lambda: _ran(world, [1]), "the pipeline runs")
    world.masters["jm-1"].kill()
    await eventually(lambda: _no_driver(world), "the driver has ended")
    world.start("jm-1")
    await world.until(job_id, "RUNNING", attempt=2)
    await eventually(lambda: _ran(world, [1, 2]), "the pipeline runs again")
    world.flag.touch()
    job = await world.until(job_id, "FINISHED")
    assert [each["outcome"] for each in job["attempts"]] == ["LOST", "FINISHED"]


async def test_a_job_restarts_when_the_leader_and_its_drivers_taskmanager_are_lost_together(world: World) -> None:
    """The next leader waits as long as the driver may run unseen, then starts another one elsewhere."""
    world.config = msgspec.structs.replace(world.config, ha=HaConfig(lease=2.0))
    world.start("jm-1")
    await world.until_up()
    await world.start_taskmanager("tm-1")
    job_id = await world.submit(executors=0)
    await eventually(lambda: _ran(world, [1]), "the pipeline runs")
    world.masters["jm-1"].kill()
    await world.stack.aclose()
    world.start("jm-1")
    await world.until_up()
    waiting = await world.until(job_id, "RECONCILING")
    assert "waiting for its driver on tm-1" in waiting["pending_reason"]
    await world.start_taskmanager("tm-2")
    await world.until(job_id, "RUNNING", attempt=2)
    world.flag.touch()
    await world.until(job_id, "FINISHED")
    assert world.runs() == [1, 2]


async def _no_driver(world: World) -> bool:
    return not [p for p in psutil.process_iter(["cmdline"]) if _is_driver(world, p.info["cmdline"] or ())]


def _is_driver(world: World, argv: Sequence[str]) -> bool:
    return any(str(world.tmp) in each and each.endswith("driver.json") for each in argv)


async def _leads(world: World, name: str, standbys: list[str]) -> bool:
    _, leader = await world.call(world.pki.home, "GET", "/v1/leader")
    return (leader["name"], leader["standbys"]) == (name, standbys)


async def _executors(world: World, job_id: str, states: list[str]) -> bool:
    job = await world.job(job_id)
    return job is not None and [each["state"] for each in job["executors"]] == states


async def _ran(world: World, attempts: list[int]) -> bool:
    return world.runs() == attempts


async def test_restart_counts_and_exceptions_are_kept_across_leaders(world: World) -> None:
    """Each leader is killed while the job waits for its restart; the third failure exceeds the limit."""
    world.start("jm-1")
    await world.until_up()
    await world.start_taskmanager("tm-1")
    restart = {"strategy": "fixed-delay", "delay": 3000, "attempts": 2}
    job_id = await world.submit(executors=0, end="fail-first", failures=9, restart=restart)
    for attempt in (1, 2):
        await world.until(job_id, "RESTARTING", attempt=attempt)
        world.masters["jm-1"].kill()
        world.start("jm-1")
    job = await world.until(job_id, "FAILED", attempt=3)
    assert [(each["number"], each["outcome"]) for each in job["attempts"]] == [
        (1, "FAILED"),
        (2, "FAILED"),
        (3, "FAILED"),
    ]
    _, document = await world.call(world.pki.home, "GET", f"/v1/jobs/{job_id}/exceptions")
    ended = [(each["attempt"], each["error"]) for each in document["exceptions"] if each["ended_attempt"]]
    assert ended == [(1, "ValueError: 1"), (2, "ValueError: 2"), (3, "ValueError: 3")]


async def test_a_standby_of_the_same_home_takes_over_at_once(world: World) -> None:
    world.start("jm-1")
    await world.until_up()
    world.start("jm-2", home=world.pki.home)
    await world.start_taskmanager("tm-1")
    job_id = await world.submit()
    await eventually(lambda: _ran(world, [1]), "the pipeline runs")
    await eventually(lambda: _leads(world, "jm-1", ["jm-2"]), "the standby is seen")
    world.masters["jm-1"].kill()
    await eventually(lambda: _leads(world, "jm-2", []), "the standby leads")
    await world.until(job_id, "RUNNING")
    world.flag.touch()
    job = await world.until(job_id, "FINISHED")
    assert (job["attempt"], world.runs()) == (1, [1])


async def test_a_cancelled_job_is_not_started_again_by_the_next_leader(world: World) -> None:
    """The JobManager is killed before the driver has ended."""
    world.start("jm-1", die=Death(event="os.rename", path="pointers/results/", before=True))
    await world.until_up()
    await world.start_taskmanager("tm-1")
    job_id = await world.submit()
    await eventually(lambda: _ran(world, [1]), "the pipeline runs")
    status, _ = await world.call(world.pki.home, "PATCH", f"/v1/jobs/{job_id}?mode=cancel")
    assert status == 202
    await eventually(lambda: _dead(world.masters["jm-1"]), "the JobManager is dead")
    world.start("jm-1")
    await world.until(job_id, "CANCELED")
    assert world.runs() == [1]


async def _dead(master: Master) -> bool:
    return exit_of(master) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("death", "jobs", "runs"),
    [
        pytest.param(Death("os.rename", "storage/jobs/.*submission", before=True), 0, [], id="before-the-submission"),
        pytest.param(Death("os.rename", "pointers/jobs/", before=True), 0, [], id="before-the-intent"),
        pytest.param(Death("os.rename", "pointers/jobs/", before=True, nth=2), 0, [], id="before-it-is-accepted"),
        pytest.param(Death("os.rename", "pointers/jobs/", before=False, nth=2), 1, [1], id="accepted-and-nobody-told"),
        pytest.param(
            Death("os.rename", "pointers/attempts/", before=False), 1, [2], id="before-the-driver-has-a-place"
        ),
        pytest.param(Death("os.rename", "pointers/attempts/", before=False, nth=2), 1, [2], id="before-the-driver"),
        pytest.param(Death("os.rename", "pointers/results/", before=True), 1, [1, 2], id="before-the-result"),
        pytest.param(Death("os.rename", "pointers/results/", before=False), 1, [1], id="ended-and-not-cleaned"),
        pytest.param(Death("os.remove", "pointers/jobs/", before=True), 1, [1], id="half-cleaned"),
        pytest.param(Death("os.remove", "pointers/jobs/", before=False), 1, [1], id="nearly-cleaned"),
    ],
)
async def test_no_job_is_lost_when_the_jobmanager_is_killed_at_a_critical_instant(
    world: World, death: Death, jobs: int, runs: list[int]
) -> None:
    """No accepted job is lost, none runs after its result is durable, and nothing is left in the end."""
    world.flag.touch()
    master = world.start("jm-1", die=death)
    await world.until_up()
    await world.start_taskmanager("tm-1")
    try:
        await world.submit(executors=0)
    except (aiohttp.ClientError, OSError):
        assert death.event == "os.rename"
    await eventually(lambda: _dead(master), "the JobManager is dead")
    world.start("jm-1")
    await world.until_up()
    found = await world.jobs()
    assert len(found) == jobs
    for job in found:
        await world.until(job["id"], "FINISHED")
    storage = world.pki.home.root / "ha" / "storage" / "jobs"

    async def cleaned() -> bool:
        return not storage.exists() or not list(storage.iterdir())

    await eventually(cleaned, "nothing is left in the storage")
    assert world.runs() == runs
    drivers = [p for p in psutil.process_iter(["cmdline"]) if str(world.tmp) in " ".join(p.info["cmdline"] or ())]
    assert len(drivers) == 1, drivers
