"""A real Spark job whose leader and one ZooKeeper server are killed midway.

It gives the result of an undisturbed run.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest

from sluice.runtime.taskmanager import AGENT
from tests.system.ha.ensemble import Ensemble
from tests.system.ha.test_zookeeper_failover import TAKEOVER_SECONDS, leader_seen_by
from tests.system.ha.world import World, eventually

PIPELINE = Path(__file__).with_name("doubling_rounds.py")
JOB_SECONDS = 240.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(560)]


async def submit(world: World, name: str, at: str) -> str:
    """Submit the pipeline; its files are named after ``name``."""
    form = aiohttp.FormData()
    request = {"executors": 2, "args": [str(world.shared / f"{name}.sums"), str(world.shared / f"{name}.rounds")]}
    form.add_field("request", json.dumps(request), content_type="application/json")
    form.add_field("pipeline", PIPELINE.read_bytes(), filename="doubling_rounds.py")
    status, document = await world.call(at, "POST", "/v1/jobs", data=form)
    assert status == 202, document
    return str(document["job_id"])


async def finished(world: World, job_id: str, at: str) -> int:
    """Wait for the end of a job; how many attempts it took."""

    async def ended() -> object:
        job = await world.job(job_id, at)
        return job if job is not None and job["end_time"] is not None else None

    job = await eventually(ended, "the job ends", JOB_SECONDS)
    assert job["state"] == "FINISHED", job
    return int(job["attempt"])


def drivers_of(job_id: str) -> set[int]:
    """The processes of driver agents of a job."""
    agents = (each for each in psutil.process_iter(["cmdline", "cwd"]) if AGENT[-1] in (each.info["cmdline"] or ()))
    return {each.pid for each in agents if job_id in (each.info["cwd"] or "")}


async def test_a_job_whose_leader_and_a_zookeeper_are_killed_gives_the_result_of_a_clean_run(
    machines: World, ensemble: Ensemble
) -> None:
    machines.spark = True
    taskmanager = msgspec.structs.replace(machines.config.taskmanager, slots=2, slot_memory_mb=600)
    machines.config = msgspec.structs.replace(machines.config, taskmanager=taskmanager)
    for master in machines.masters.values():
        master.config = msgspec.structs.replace(master.config, taskmanager=taskmanager)
    machines.start("jm-1")
    await machines.until_up("jm-1")
    machines.start("jm-2")
    await machines.until_up("jm-2")
    await machines.start_taskmanager("tm-1", jobmanagers=machines.rpc_addresses)

    clean = await submit(machines, "clean", "jm-1")
    assert await finished(machines, clean, "jm-1") == 1

    job_id = await submit(machines, "disturbed", "jm-2")
    rounds = machines.shared / "disturbed.rounds"

    async def under_way() -> bool:
        return rounds.exists() and len(rounds.read_text().split()) >= 2

    await eventually(under_way, "two rounds are done", JOB_SECONDS)
    drivers = drivers_of(job_id)
    assert drivers
    killed_at = time.monotonic()
    machines.masters["jm-1"].kill()
    ensemble.kill(2)

    async def taken_over() -> bool:
        return (await leader_seen_by(machines, "jm-2")).endswith("/jm-2")

    await eventually(taken_over, "jm-2 leads")
    took = time.monotonic() - killed_at
    assert drivers_of(job_id) == drivers
    assert took < TAKEOVER_SECONDS
    assert await finished(machines, job_id, "jm-2") == 1  # it went on without starting again
    sums = (machines.shared / "disturbed.sums").read_text()
    assert sums == (machines.shared / "clean.sums").read_text()
    assert len(sums.splitlines()) == 4
    states = {job["id"]: job["state"] for job in await machines.jobs("jm-2")}
    assert states == {clean: "FINISHED", job_id: "FINISHED"}
    ensemble.start_server(2)
