"""Random shuffles with one random fault each: the right answer or a clear error, in bounded time.

The seed of the series and the number of the run determine everything about a run, except the timing of
threads and processes::

    SLUICE_CHAOS_SEED=7 SLUICE_CHAOS_RUNS=500 pytest tests/chaos/shuffle/test_fault_series.py
    SLUICE_CHAOS_SEED=7 pytest tests/chaos/shuffle/test_fault_series.py -k run-042
    SLUICE_CHAOS_FLAVOUR=sealed pytest tests/chaos/shuffle/test_fault_series.py
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

from sluice.core.files import make_private_directory
from sluice.runtime.spark.jvm.command import find_spark_runtime
from tests.chaos.shuffle.effects import Effects
from tests.chaos.shuffle.faults import ANY_MOMENT, FAULTS, MOMENTS, Fault
from tests.chaos.shuffle.report import Report
from tests.chaos.shuffle.scene import FLAVOURS, LEAST_BYTES, WORKERS, Scene, scene
from tests.hostile import TestPki
from tests.system.shuffle.pipelines.seeded import KINDS, expected

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

SEED = int(os.environ.get("SLUICE_CHAOS_SEED", "1"))
RUNS = int(os.environ.get("SLUICE_CHAOS_RUNS", "200"))
RUNS_PER_SCENE = 40
MOST_SECONDS = 150.0
"""No run may take longer, on however busy a machine."""
SETTLING = {"kind": "repartition", "seed": 0, "rows": 400, "maps": 9, "partitions": 9, "width": 20, "skew": 0}
"""A job between two runs: what it meets is what the last fault left, and not an effect of the next."""
LARGEST_BYTES = 6 << 20
ROW_BYTES, TEXT_BYTES = 16, 48
"""About what numbers and text of a row take, compressed."""
LEAST_SHARE, ENOUGH_RUNS = 0.85, 50
"""So many of the runs must have had a fault that somebody noticed; a few runs alone say nothing about that."""
CLEAR = re.compile(r"shuffle-worker-\d|no disk takes data|no workers for a shuffle")
"""A failure says what went wrong."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The job and the fault of one run.

    ``moment`` says when the fault occurs: ``before`` the job, ``meanwhile`` (during the write), or ``between``
    the write and a second read.
    """

    job: Mapping[str, Any]
    replicas: int
    fault: Fault
    moment: str
    after: float
    """Of ``meanwhile``: how far into the job, as a share of what it shuffles."""


def plan(number: int) -> tuple[Plan, random.Random]:
    """Return the plan of run ``number``, and the random generator that its fault uses."""
    rng = random.Random(f"{SEED}-{number}")  # noqa: S311  # no secret
    width = rng.choice([20, 200, 200, 2000, 150_000])
    job: dict[str, Any] = {
        "kind": rng.choice(sorted(KINDS)),
        "seed": rng.randrange(1 << 30),
        "rows": min(rng.choice([40, 3000, 12_000]), LARGEST_BYTES // width),
        "maps": rng.randint(1, 8),
        "partitions": rng.randint(1, 24),
        "width": width,
        "skew": rng.choice([0, 0, 3, 8]),
    }
    fault = FAULTS[number % len(FAULTS)]
    moment = rng.choice(MOMENTS.get(fault, ANY_MOMENT))
    if moment == "before":
        job["maps"] = max(len(WORKERS), job["maps"])  # so that each worker has a part in it
    return Plan(job, rng.choice([1, 2]), fault, moment, rng.random()), rng


class Stage:
    """Provides the scene of each run; replaces it for each new flavour and when a run has damaged it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = AsyncExitStack()
        self._number = -1
        self._scene: Scene | None = None
        self._made = 0

    async def scene(self, run: int) -> Scene:
        """Return an undamaged scene for this run."""
        number = run // RUNS_PER_SCENE
        if self._scene is None or number != self._number or not self._scene.is_usable:
            await self.close()
            self._number = number
            self._made += 1
            directory = make_private_directory(self._directory / str(self._made))
            pki = TestPki(self._directory / f"pki-{self._made}")
            flavour = FLAVOURS[number % len(FLAVOURS)]
            self._scene = await self._stack.enter_async_context(scene(directory, pki, find_spark_runtime(), flavour))
            job = plan(run)[0].job
            try:  # so that everything is warm
                assert await self._scene.ask("write", job) == {"result": expected(dict(job))}
            except BaseException:
                self._scene.is_usable = False
                raise
        await self._scene.repair()
        await self._scene.ask("write", SETTLING)
        self._scene.forget()
        return self._scene

    async def close(self) -> None:
        """Close the scene."""
        self._scene = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The stage that provides the scenes of all runs in this module."""
    made = Stage(tmp_path_factory.mktemp("series"))
    yield made
    await made.close()


@pytest.mark.parametrize("number", [pytest.param(number, id=f"run-{number:03}") for number in range(RUNS)])
async def test_a_shuffle_with_a_random_fault_gives_the_right_answer_or_a_clear_error(
    stage: Stage, report: Report, number: int
) -> None:
    scene = await stage.scene(number)
    what, rng = plan(number)
    scene.workers.replicas = what.replicas
    scene.volume = what.job["rows"] * (ROW_BYTES + min(what.job["width"], TEXT_BYTES))
    right = expected(dict(what.job))
    effects = Effects(scene)
    start = time.monotonic()
    answers: list[Mapping[str, str]] = []
    try:
        async with asyncio.timeout(MOST_SECONDS):
            await _run(scene, what, rng, answers)
    except TimeoutError:
        scene.is_usable = False
        report.add(what.fault.__name__, "hung", time.monotonic() - start, effects.found())
        pytest.fail(f"{what} did not end in {MOST_SECONDS} s")
    except BaseException:
        scene.is_usable = False
        raise
    failures = [answer["error"] for answer in answers if "error" in answer]
    wrong = [answer for answer in answers if answer.get("result", right) != right]
    outcome = "wrong" if wrong else "failed" if failures else "right"
    report.add(what.fault.__name__, outcome, time.monotonic() - start, effects.found())
    assert not wrong, f"{what}: {wrong}, but {right} is right"
    for error in failures:
        assert CLEAR.search(error), f"{what}: {error}"


async def test_shuffles_without_a_fault_show_no_effect(stage: Stage) -> None:
    scene = await stage.scene(RUNS - 1)
    effects = Effects(scene)
    for number in range(4):
        job = plan(number)[0].job
        for what in ("write", "read"):
            assert await scene.ask(what, job) == {"result": expected(dict(job))}
    assert effects.found() == ()


async def test_most_faults_had_an_effect(report: Report) -> None:
    assert len(report.seconds) < ENOUGH_RUNS or report.share >= LEAST_SHARE, report.lines()[-1]


async def _run(scene: Scene, what: Plan, rng: random.Random, answers: list[Mapping[str, str]]) -> None:
    """Run the write and then a second read of the job, and start the fault at its planned moment."""
    if what.moment == "before":
        faulty = await _begin(what.fault(scene, rng))
        answers.append(await scene.ask("write", what.job))
    elif what.moment == "meanwhile":
        writing = asyncio.ensure_future(scene.ask("write", what.job))
        while not writing.done() and scene.passed < LEAST_BYTES + what.after * scene.volume / 2:
            await asyncio.wait({writing}, timeout=0.01)
        faulty = await _begin(what.fault(scene, rng))
        answers.append(await writing)
    else:
        answers.append(await scene.ask("write", what.job))
        faulty = await _begin(what.fault(scene, rng))
    if "result" in answers[0]:
        answers.append(await scene.ask("read", what.job))
    await faulty


async def _begin(fault: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
    """Start a fault and wait up to 0.3 s for it, so that a short fault is finished on return."""
    running = asyncio.ensure_future(fault)
    await asyncio.wait({running}, timeout=0.3)
    return running
