"""The faults that may happen to a shuffle. Each draws its parameters at random.

A worker that must be restarted after the run is added to ``Scene.broken``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.chaos.shuffle.scene import WORKERS, Scene

DELAYS = (1.0, 2.0, 7.0)
"""Seconds: shorter and longer than clients wait."""
Fault = Callable[[Scene, random.Random], Coroutine[Any, Any, None]]


async def executor_killed(scene: Scene, rng: random.Random) -> None:
    """Kill an executor with SIGKILL. Another one replaces it."""
    await scene.kill_executor(rng.randrange(2))


async def worker_killed(scene: Scene, rng: random.Random) -> None:
    """Kill a worker with SIGKILL. It does not come back in this run."""
    await scene.workers.kill(rng.choice(scene.used()))


async def two_workers_killed(scene: Scene, rng: random.Random) -> None:
    """Kill two of the three workers with SIGKILL."""
    for name in _some(scene, rng, 2):
        await scene.workers.kill(name)


async def worker_restarted(scene: Scene, rng: random.Random) -> None:
    """Kill a worker with SIGKILL, and restart it on the same port."""
    name = rng.choice(scene.used())
    port = scene.workers.port(name)
    await scene.workers.kill(name)
    await asyncio.sleep(rng.random())
    await scene.workers.start_worker(name, port)


async def worker_restarted_elsewhere(scene: Scene, rng: random.Random) -> None:
    """Kill a worker with SIGKILL, and restart it at another address, which clients must ask for."""
    name = rng.choice(scene.used())
    await scene.workers.kill(name)
    await scene.workers.start_worker(name)
    await scene.workers.move_proxy(name)


async def worker_paused(scene: Scene, rng: random.Random) -> None:
    """Stop a worker with SIGSTOP for a shorter or longer time than clients wait, then send SIGCONT."""
    name = rng.choice(scene.used())
    process, proxy = scene.process(name), scene.workers.proxies[name]
    before = proxy.passed
    process.suspend()
    try:
        await asyncio.sleep(rng.choice(DELAYS))
    finally:
        process.resume()
    if proxy.passed > before:
        scene.seen.add("kept waiting")


async def disk_full(scene: Scene, rng: random.Random) -> None:
    """Limit the size of the files of one or two workers."""
    for name in _some(scene, rng, rng.choice([1, 1, 2])):
        scene.limit_files(name, rng.choice([0, 0, 1000, scene.volume // 6]))


async def file_damaged(scene: Scene, rng: random.Random) -> None:
    """Flip bits in the files of one or two workers.

    If only one worker is damaged, readers may use its replica alone, and the fault has no effect.
    """
    for name in rng.sample(keepers := scene.keepers(), min(len(keepers), rng.choice([1, 2, 2]))):
        _damage(scene.files(name), rng)


async def file_cut_off(scene: Scene, rng: random.Random) -> None:
    """Truncate the files of one or two workers."""
    for name in rng.sample(keepers := scene.keepers(), min(len(keepers), rng.choice([1, 2, 2]))):
        _cut_off(scene.files(name), rng)
        scene.broken.add(name)


async def file_damaged_while_away(scene: Scene, rng: random.Random) -> None:
    """Flip bits in a worker's files or truncate them while it is down. It then recovers what is left."""
    name = rng.choice(scene.keepers())
    port = scene.workers.port(name)
    await scene.workers.kill(name)
    rng.choice([_damage, _cut_off])(scene.files(name), rng)
    await scene.workers.start_worker(name, port)


def _damage(files: list[Path], rng: random.Random) -> None:
    for path in files:
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:  # the job may need it no longer
            size = path.stat().st_size
            for _ in range(max(1, size // 4096)):
                at = rng.randrange(size)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))


def _cut_off(files: list[Path], rng: random.Random) -> None:
    for path in files:
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            file.truncate(rng.randrange(path.stat().st_size))


def _some(scene: Scene, rng: random.Random, count: int) -> list[str]:
    """Return ``count`` random workers. Those that the run uses come first."""
    used = scene.used()
    rest = [name for name in WORKERS if name not in used]
    return [*rng.sample(used, len(used)), *rest][:count]


async def network_reset(scene: Scene, rng: random.Random) -> None:
    """Reset all connections of one worker or of all workers."""
    for name in _some(scene, rng, rng.choice([1, 3])):
        scene.workers.proxies[name].reset()


async def network_reset_in_a_frame(scene: Scene, rng: random.Random) -> None:
    """Reset the connections of one or two workers after some more bytes, possibly within a frame."""
    for name in _some(scene, rng, rng.choice([1, 2])):
        scene.workers.proxies[name].reset_after(rng.choice([20, 500, scene.volume // 50, scene.volume // 20]))


async def network_changes_bits(scene: Scene, rng: random.Random) -> None:
    """Change bits on the network. TLS detects it."""
    scene.workers.proxies[rng.choice(scene.used())].change(rng.choice([1, 3]))


async def network_stalls(scene: Scene, rng: random.Random) -> None:
    """Stall the network for a shorter or longer time than clients wait."""
    await scene.workers.proxies[rng.choice(scene.used())].stall(rng.choice(DELAYS))


FAULTS: tuple[Fault, ...] = (
    executor_killed, worker_killed, two_workers_killed, worker_restarted, worker_restarted_elsewhere, worker_paused,
    disk_full, file_damaged, file_cut_off, file_damaged_while_away, network_reset, network_reset_in_a_frame,
    network_changes_bits, network_stalls,
)  # fmt: skip

MOMENTS: dict[Fault, tuple[str, ...]] = {
    executor_killed: ("meanwhile", "between"),
    worker_paused: ("meanwhile", "between"),
    network_stalls: ("meanwhile", "between"),
    disk_full: ("before", "meanwhile"),
    file_damaged: ("meanwhile", "between", "between"),
    file_cut_off: ("meanwhile", "between", "between"),
    file_damaged_while_away: ("meanwhile", "between", "between"),
}
"""When it can do anything, where that is not at any time: what is not there yet cannot be damaged, and so on."""
ANY_MOMENT = ("before", "meanwhile", "between")
