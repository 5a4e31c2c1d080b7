"""Random shuffles, each with a random fault: the right answer or a clear failure, in bounded time.

Everything about a run follows from the seed of the series and its number (but for what threads and processes do)::

    SLUICE_CHAOS_SEED=7 SLUICE_CHAOS_RUNS=500 pytest tests/chaos/shuffle/test_fault_series.py
    SLUICE_CHAOS_SEED=7 pytest tests/chaos/shuffle/test_fault_series.py -k run-042
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pki.files import make_private_directory
from runtime.spark.command import find_spark_runtime
from tests.chaos.shuffle.faults import FAULTS, Fault
from tests.chaos.shuffle.report import Report
from tests.chaos.shuffle.scene import FLAVOURS, Scene, scene
from tests.hostile import TestPki
from tests.system.shuffle.pipelines.seeded import KINDS, expected

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

SEED = int(os.environ.get("SLUICE_CHAOS_SEED", "1"))
RUNS = int(os.environ.get("SLUICE_CHAOS_RUNS", "200"))
RUNS_PER_SCENE = 50
MOST_SECONDS = 150.0
"""No run may take longer, on however busy a machine."""
LARGEST_BYTES = 6 << 20
CLEAR = re.compile(r"shuffle-worker-\d|no disk takes data|no workers for a shuffle")
"""A failure says what went wrong."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done in one run: ``moment`` is before the job, between its maps and a second read, or meanwhile."""

    job: Mapping[str, Any]
    replicas: int
    fault: Fault
    moment: str
    after: float
    """Of ``meanwhile``: how far into the job, as a share of the time that one took on this cluster before."""


def plan(number: int) -> tuple[Plan, random.Random]:
    """Run ``number`` of the series, and the chances of its fault."""
    rng = random.Random(f"{SEED}-{number}")  # noqa: S311  # no secret
    width = rng.choice([20, 200, 200, 2000, 150_000])
    job = {
        "kind": rng.choice(sorted(KINDS)),
        "seed": rng.randrange(1 << 30),
        "rows": min(rng.choice([40, 3000, 12_000]), LARGEST_BYTES // width),
        "maps": rng.randint(1, 8),
        "partitions": rng.randint(1, 24),
        "width": width,
        "skew": rng.choice([0, 0, 3, 8]),
    }
    fault = FAULTS[number % len(FAULTS)]
    return Plan(job, rng.choice([1, 2]), fault, rng.choice(["before", "meanwhile", "between"]), rng.random()), rng


class Stage:
    """The scene of a run; a new one for each flavour, and after a run that left one in pieces."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = AsyncExitStack()
        self._number = -1
        self._scene: Scene | None = None
        self._made = 0
        self.usual_seconds = 1.0

    async def scene(self, run: int) -> Scene:
        """The scene for a run, whole."""
        number = run // RUNS_PER_SCENE
        if self._scene is None or number != self._number or not self._scene.is_usable:
            await self.close()
            self._number = number
            self._made += 1
            directory = make_private_directory(self._directory / str(self._made))
            pki = TestPki(self._directory / f"pki-{self._made}")
            flavour = FLAVOURS[number % len(FLAVOURS)]
            self._scene = await self._stack.enter_async_context(scene(directory, pki, find_spark_runtime(), flavour))
            for _ in range(2):  # to know how long it takes, once everything is warm
                start = time.monotonic()
                job = plan(run)[0].job
                try:
                    assert await self._scene.ask("write", job) == {"result": expected(dict(job))}
                except BaseException:
                    self._scene.is_usable = False
                    raise
                self.usual_seconds = time.monotonic() - start
        await self._scene.repair()
        return self._scene

    async def close(self) -> None:
        """End everything."""
        self._scene = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Where the runs take place."""
    made = Stage(tmp_path_factory.mktemp("series"))
    yield made
    await made.close()


@pytest.mark.parametrize("number", [pytest.param(number, id=f"run-{number:03}") for number in range(RUNS)])
async def test_answer_is_right_or_there_is_a_clear_failure(stage: Stage, report: Report, number: int) -> None:
    scene = await stage.scene(number)
    what, rng = plan(number)
    scene.workers.replicas = what.replicas
    right = expected(dict(what.job))
    start = time.monotonic()
    answers: list[Mapping[str, str]] = []
    try:
        async with asyncio.timeout(MOST_SECONDS):
            await _run(scene, what, rng, what.after * stage.usual_seconds, answers)
    except TimeoutError:
        scene.is_usable = False
        report.add(what.fault.__name__, "hung", time.monotonic() - start)
        pytest.fail(f"{what} did not end in {MOST_SECONDS} s")
    except BaseException:
        scene.is_usable = False
        raise
    failures = [answer["error"] for answer in answers if "error" in answer]
    wrong = [answer for answer in answers if answer.get("result", right) != right]
    outcome = "wrong" if wrong else "failed" if failures else "right"
    report.add(what.fault.__name__, outcome, time.monotonic() - start)
    assert not wrong, f"{what}: {wrong}, but {right} is right"
    for error in failures:
        assert CLEAR.search(error), f"{what}: {error}"


async def _run(scene: Scene, what: Plan, rng: random.Random, delay: float, answers: list[Mapping[str, str]]) -> None:
    """Write and read, read again, and the fault at its moment."""
    if what.moment == "before":
        faulty = await _begin(what.fault(scene, rng))
        answers.append(await scene.ask("write", what.job))
    elif what.moment == "meanwhile":
        writing = asyncio.ensure_future(scene.ask("write", what.job))
        await asyncio.sleep(delay)
        faulty = await _begin(what.fault(scene, rng))
        answers.append(await writing)
    else:
        answers.append(await scene.ask("write", what.job))
        faulty = await _begin(what.fault(scene, rng))
    if "result" in answers[0]:
        answers.append(await scene.ask("read", what.job))
    await faulty


async def _begin(fault: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
    """Begin a fault; those that are over in a moment are over."""
    running = asyncio.ensure_future(fault)
    await asyncio.wait({running}, timeout=0.3)
    return running
