"""A job gives the result of a clean run although processes are killed at random.

The victims are JobManagers, which run as on two machines, ZooKeeper servers and drivers.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest

from tests.chaos.processes.story import WITH_AN_ENSEMBLE, Death, Kind, story
from tests.chaos.processes.test_batch import JOB_SECONDS, PIPELINE, rounds
from tests.chaos.processes.victims import WORDS, has_words
from tests.system.ha.ensemble import SERVERS, Ensemble
from tests.system.ha.world import World, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DEATHS = int(os.environ.get("SLUICE_CHAOS_DEATHS", "4"))
RESTART = {"strategy": "fixed-delay", "attempts": 50, "delay": 0.5}
NAMES = ("jm-1", "jm-2")


@dataclass
class Machines:
    """A test world with a ZooKeeper ensemble, whose processes can be killed and restarted."""

    world: World
    ensemble: Ensemble

    async def leader(self) -> str:
        """Return the name of the leader, or an empty string. Asks the JobManagers that are running."""
        for name in NAMES:
            process = self.world.masters[name].process
            if process is not None and process.poll() is None:
                status, document = await self.world.call(name, "GET", "/v1/overview")
                if status == 200:
                    return str(document["jobmanager"]).rpartition("/")[2]
        return ""

    async def job(self, job_id: str) -> Any:
        """Return the job, as the current leader reports it."""
        leader = await eventually(self.leader, "somebody leads", JOB_SECONDS)
        return await self.world.job(job_id, leader)

    async def kill(self, death: Death) -> str:
        """Kill a process of this kind with ``kill -9``; returns the process's name or process id."""
        if death.kind is Kind.ZOOKEEPER:
            number = 1 + int(death.choice * SERVERS)
            self.ensemble.kill(number)
            return f"zk-{number}"
        if death.kind in {Kind.LEADER, Kind.STANDBY}:
            leader = await eventually(self.leader, "somebody leads", JOB_SECONDS)
            name = leader if death.kind is Kind.LEADER else next(each for each in NAMES if each != leader)
            self.world.masters[name].kill()
            return name

        async def killed() -> str:
            found = sorted(self._of(death.kind), key=lambda each: each.pid)
            if not found:
                return ""
            victim = found[int(death.choice * len(found))]
            victim.kill()
            return str(victim.pid)

        return str(await eventually(killed, f"there is a {death.kind} to kill", JOB_SECONDS))

    async def revive(self, name: str) -> None:
        """Restart the JobManager or ZooKeeper server ``name``. Does nothing for other processes."""
        if name.startswith("zk-"):
            self.ensemble.start_server(int(name.removeprefix("zk-")))
            await asyncio.to_thread(self.ensemble.until_whole)
        elif name in NAMES:
            self.world.start(name)
            await self.world.until_up(name)

    def _of(self, kind: Kind) -> Iterator[psutil.Process]:
        for each in psutil.Process().children(recursive=True):
            if kind is Kind.DRIVER_PYTHON:
                if has_words(each, (PIPELINE.name,)):
                    yield each
            elif has_words(each, WORDS[kind]):
                yield each


async def submit(machines: Machines, target: Path, progress: Path, hold: Path) -> str:
    """Submit the pipeline as a job that is restarted whenever it fails; returns the job's id."""
    form = aiohttp.FormData()
    request = {"executors": 2, "args": [str(target), str(progress), str(hold)], "restart": RESTART}
    form.add_field("request", json.dumps(request), content_type="application/json")
    form.add_field("pipeline", PIPELINE.read_bytes(), filename=PIPELINE.name)
    status, document = await machines.world.call("jm-1", "POST", "/v1/jobs", data=form)
    assert status == 202, document
    return str(document["job_id"])


async def finished(machines: Machines, job_id: str) -> Any:
    """Wait until the job has ended, check that it is ``FINISHED``, and return it."""

    async def ended() -> object:
        job = await machines.job(job_id)
        return job if job is not None and job["end_time"] is not None else None

    job = await eventually(ended, "the job ends", JOB_SECONDS)
    assert job["state"] == "FINISHED", job
    return job


async def another_round(progress: Path, done: int) -> None:
    """Wait until more rounds than ``done`` are done."""

    async def more() -> bool:
        return rounds(progress) > done

    await eventually(more, f"another round is done after {done}", JOB_SECONDS)


async def test_a_job_with_killed_jobmanagers_zookeepers_and_drivers_gives_the_result_of_a_clean_run(
    machines: World, ensemble: Ensemble, seed: int
) -> None:
    taskmanager = msgspec.structs.replace(machines.config.taskmanager, slots=2, slot_memory_mb=600)
    machines.spark = True
    machines.config = msgspec.structs.replace(machines.config, taskmanager=taskmanager)
    for master in machines.masters.values():
        master.config = msgspec.structs.replace(master.config, taskmanager=taskmanager)
    for name in NAMES:
        machines.start(name)
        await machines.until_up(name)
    await machines.start_taskmanager("tm-1", jobmanagers=machines.rpc_addresses)
    both = Machines(machines, ensemble)
    clean = await submit(both, machines.shared / "clean", machines.shared / "clean.rounds", machines.shared / "never")
    assert (await finished(both, clean))["attempt"] == 1

    target, progress, hold = (
        machines.shared / "disturbed",
        machines.shared / "disturbed.rounds",
        machines.shared / "hold",
    )
    hold.touch()
    job_id = await submit(both, target, progress, hold)
    began, done = time.monotonic(), 0
    for death in story("ensemble", seed, DEATHS, WITH_AN_ENSEMBLE):
        if not death.hasty:
            await another_round(progress, done)
        await asyncio.sleep(death.after)
        victim = await both.kill(death)
        done = rounds(progress)
        print(f"seed {seed}: {time.monotonic() - began:.0f} s, {done} rounds: killed {death} {victim}")  # noqa: T201
        await asyncio.sleep(death.choice)
        await both.revive(victim)
    await another_round(progress, done)
    hold.unlink()
    job = await finished(both, job_id)
    print(f"seed {seed}: {time.monotonic() - began:.0f} s, {rounds(progress)} rounds, {job['attempt']} attempts")  # noqa: T201
    assert target.read_text() == (machines.shared / "clean").read_text()
    assert not (machines.shared / "disturbed.twice").exists(), "two drivers ran at the same time"
    for name in NAMES:
        states = {each["id"]: each["state"] for each in await machines.jobs(name)}
        assert states == {clean: "FINISHED", job_id: "FINISHED"}
