"""What may happen to a shuffle, each with its own chances; a worker that has to be started again is noted as broken."""

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
    """SIGKILL an executor; another one comes."""
    await scene.kill_executor(rng.randrange(2))


async def worker_killed(scene: Scene, rng: random.Random) -> None:
    """SIGKILL a worker for the rest of the run."""
    await scene.workers.kill(rng.choice(scene.used()))


async def two_workers_killed(scene: Scene, rng: random.Random) -> None:
    """SIGKILL two of three."""
    for name in _some(scene, rng, 2):
        await scene.workers.kill(name)


async def worker_restarted(scene: Scene, rng: random.Random) -> None:
    """SIGKILL a worker, and start it again at its port."""
    name = rng.choice(scene.used())
    port = scene.workers.port(name)
    await scene.workers.kill(name)
    await asyncio.sleep(rng.random())
    await scene.workers.start_worker(name, port)


async def worker_restarted_elsewhere(scene: Scene, rng: random.Random) -> None:
    """SIGKILL a worker, and start it again at another address: nobody finds it without asking."""
    name = rng.choice(scene.used())
    await scene.workers.kill(name)
    await scene.workers.start_worker(name)
    await scene.workers.move_proxy(name)


async def worker_paused(scene: Scene, rng: random.Random) -> None:
    """SIGSTOP a worker for shorter or longer than clients wait, then SIGCONT."""
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
    """The files of one or two workers cannot grow beyond some size."""
    for name in _some(scene, rng, rng.choice([1, 1, 2])):
        scene.limit_files(name, rng.choice([0, 0, 1000, scene.volume // 6]))


async def file_damaged(scene: Scene, rng: random.Random) -> None:
    """Bits flip in the files of one or two workers: of one alone, it may be that only its replica is read."""
    for name in rng.sample(keepers := scene.keepers(), min(len(keepers), rng.choice([1, 2, 2]))):
        _damage(scene.files(name), rng)


async def file_cut_off(scene: Scene, rng: random.Random) -> None:
    """The end of the files of one or two workers is lost."""
    for name in rng.sample(keepers := scene.keepers(), min(len(keepers), rng.choice([1, 2, 2]))):
        _cut_off(scene.files(name), rng)
        scene.broken.add(name)


async def file_damaged_while_away(scene: Scene, rng: random.Random) -> None:
    """Bits flip or are lost while a worker is not running; it recovers from what there is."""
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
    """Some workers, those first that the run uses."""
    used = scene.used()
    rest = [name for name in WORKERS if name not in used]
    return [*rng.sample(used, len(used)), *rest][:count]


async def network_reset(scene: Scene, rng: random.Random) -> None:
    """All connections with a worker, or with all of them, end with a reset."""
    for name in _some(scene, rng, rng.choice([1, 3])):
        scene.workers.proxies[name].reset()


async def network_reset_in_a_frame(scene: Scene, rng: random.Random) -> None:
    """The same after some more bytes."""
    for name in _some(scene, rng, rng.choice([1, 2])):
        scene.workers.proxies[name].reset_after(rng.choice([20, 500, scene.volume // 50, scene.volume // 20]))


async def network_changes_bits(scene: Scene, rng: random.Random) -> None:
    """What passes is changed: TLS sees it."""
    scene.workers.proxies[rng.choice(scene.used())].change(rng.choice([1, 3]))


async def network_stalls(scene: Scene, rng: random.Random) -> None:
    """Nothing passes for shorter or longer than clients wait."""
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
