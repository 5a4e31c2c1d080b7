"""What may happen to a shuffle, each with its own chances; a worker that has to be started again is noted as broken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.chaos.shuffle.scene import WORKERS, Scene

NEWEST_SHUFFLES = 3
Fault = Callable[[Scene, random.Random], Coroutine[Any, Any, None]]


async def executor_killed(scene: Scene, rng: random.Random) -> None:
    """SIGKILL an executor; another one comes."""
    await scene.kill_executor(rng.randrange(2))


async def worker_killed(scene: Scene, rng: random.Random) -> None:
    """SIGKILL a worker for the rest of the run."""
    await scene.workers.kill(rng.choice(WORKERS))


async def two_workers_killed(scene: Scene, rng: random.Random) -> None:
    """SIGKILL two of three."""
    for name in rng.sample(WORKERS, 2):
        await scene.workers.kill(name)


async def worker_restarted(scene: Scene, rng: random.Random) -> None:
    """SIGKILL a worker, and start it again at its port."""
    name = rng.choice(WORKERS)
    port = scene.workers.port(name)
    await scene.workers.kill(name)
    await asyncio.sleep(rng.random())
    await scene.workers.start_worker(name, port)


async def worker_restarted_elsewhere(scene: Scene, rng: random.Random) -> None:
    """SIGKILL a worker, and start it again at another address: nobody finds it without asking."""
    name = rng.choice(WORKERS)
    await scene.workers.kill(name)
    await scene.workers.start_worker(name)
    await scene.workers.move_door(name)


async def worker_paused(scene: Scene, rng: random.Random) -> None:
    """SIGSTOP a worker for shorter or longer than clients wait, then SIGCONT."""
    process = scene.process(rng.choice(WORKERS))
    process.suspend()
    try:
        await asyncio.sleep(rng.choice([0.3, 2.0, 7.0]))
    finally:
        process.resume()


async def disk_full(scene: Scene, rng: random.Random) -> None:
    """The files of one or two workers cannot grow beyond some size."""
    for name in rng.sample(WORKERS, rng.choice([1, 1, 2])):
        scene.limit_files(name, rng.choice([0, 4 << 10, 100_000, 1 << 20]))


async def file_damaged(scene: Scene, rng: random.Random) -> None:
    """Bits flip in the files of a worker."""
    _damage(_files(scene, rng.choice(WORKERS)), rng)


async def file_cut_off(scene: Scene, rng: random.Random) -> None:
    """The end of the files of a worker is lost."""
    name = rng.choice(WORKERS)
    _cut_off(_files(scene, name), rng)
    scene.broken.add(name)


async def file_damaged_while_away(scene: Scene, rng: random.Random) -> None:
    """Bits flip or are lost while a worker is not running; it recovers from what there is."""
    name = rng.choice(WORKERS)
    port = scene.workers.port(name)
    await scene.workers.kill(name)
    rng.choice([_damage, _cut_off])(_files(scene, name), rng)
    await scene.workers.start_worker(name, port)


def _damage(files: list[Path], rng: random.Random) -> None:
    for path in files:
        size = path.stat().st_size
        with path.open("r+b") as file:
            for _ in range(max(1, size // 4096)):
                at = rng.randrange(size)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))


def _cut_off(files: list[Path], rng: random.Random) -> None:
    for path in files:
        with path.open("r+b") as file:
            file.truncate(rng.randrange(path.stat().st_size))


def _files(scene: Scene, name: str) -> list[Path]:
    """The files of a worker's newest shuffles that have something in them."""
    shuffles = sorted(scene.workers.data(name).glob("*/*/"), key=lambda path: int(path.name))[-NEWEST_SHUFFLES:]
    return [path for each in shuffles for path in sorted(each.iterdir()) if path.stat().st_size]


async def network_reset(scene: Scene, rng: random.Random) -> None:
    """All connections with a worker, or with all of them, end with a reset."""
    for name in rng.sample(WORKERS, rng.choice([1, 3])):
        scene.workers.doors[name].reset()


async def network_reset_in_a_frame(scene: Scene, rng: random.Random) -> None:
    """The same after some more bytes."""
    for name in rng.sample(WORKERS, rng.choice([1, 2])):
        scene.workers.doors[name].reset_after(rng.choice([20, 5_000, 70_000, 600_000]))


async def network_changes_bits(scene: Scene, rng: random.Random) -> None:
    """What passes is changed: TLS sees it."""
    scene.workers.doors[rng.choice(WORKERS)].change(rng.choice([1, 3]))


async def network_stalls(scene: Scene, rng: random.Random) -> None:
    """Nothing passes for shorter or longer than clients wait."""
    await scene.workers.doors[rng.choice(WORKERS)].stall(rng.choice([0.5, 2.0, 7.0]))


FAULTS: tuple[Fault, ...] = (
    executor_killed, worker_killed, two_workers_killed, worker_restarted, worker_restarted_elsewhere, worker_paused,
    disk_full, file_damaged, file_cut_off, file_damaged_while_away, network_reset, network_reset_in_a_frame,
    network_changes_bits, network_stalls,
)  # fmt: skip
