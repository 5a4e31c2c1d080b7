"""The pool of warm processes: starts them when the machine is idle, and ends them when memory is short."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from sluice.core import Sample, SluiceError, end_tasks
from sluice.runtime.warm.backoff import Backoff
from sluice.runtime.warm.machine import Machine, Resources
from sluice.runtime.warm.sizing import Sizing, WarmKind, WarmSize

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
QUIET_SECONDS = 5.0
"""Pause after a request: a job is starting and must not be disturbed."""
IDLE_SHARE = 0.25
"""Share of CPU time that must be idle before a process is started."""
IDLE_SHARE_IN_BACKGROUND = 0.10
"""The same for a process at idle priority; with less idle time its start takes too long."""
RESERVE = 0.25
"""Share of the machine's memory that must stay free when another process is started."""
PRESSURE = 0.10
"""If a smaller share of the machine's memory is free, warm processes are ended one by one."""
START_SECONDS = 180.0
"""How long a process may take to become ready; at idle priority the start may be slow."""
OVERHEAD_MB = 400
"""Maximum memory that a warm process needs besides its heap, in MiB."""
STARVED_SECONDS = 600.0
"""If no process could be started for this long, the log says why."""
REMEDY = "meanwhile jobs start without a warm JVM; [warm] jvms = 0 turns the pool off"
STARVED_REMEDY = (
    'meanwhile jobs start without a warm JVM; [warm] fill = "always" fills the pool at the cost of running jobs, '
    "jvms = 0 turns it off"
)


class Waiting(Protocol):
    """A warm process, or one that is starting."""

    @property
    def size(self) -> WarmSize:
        """The kind and size of the process it can become."""

    @property
    def usable(self) -> bool:
        """Whether it waits, and the software it was started with has not changed."""

    async def start(self) -> None:
        """Start it and return when it waits."""

    async def close(self) -> None:
        """End it and remove its files."""

    def used_seconds(self) -> float:
        """CPU time that it has used."""


W = TypeVar("W", bound=Waiting)


@dataclass(slots=True)
class PoolFigures:
    """The counters of the pool, by kind."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    started: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    """Processes that ended without a job."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Processes that could not be used for their job, which then started without a warm process."""
    seconds: dict[str, float] = field(default_factory=dict)
    """CPU time of processes until they were ready."""

    def samples(self, waiting: Mapping[WarmSize, int]) -> Iterator[Sample]:
        """The counters and the number of waiting processes, as metrics."""
        for kind in WarmKind:
            number = sum(count for size, count in waiting.items() if size.kind is kind)
            yield Sample("sluice_warm_jvms", "gauge", "Warm JVMs that wait for a job.", number, {"kind": kind})
            for result, found in (("hit", self.hits), ("miss", self.misses), ("unusable", self.unusable)):
                yield Sample(
                    "sluice_warm_takes_total",
                    "counter",
                    "Drivers and executors that could use a warm JVM: one was available, none was, or it failed.",
                    found[kind],
                    {"kind": kind, "result": result},
                )
            for result, found in (("waits", self.started), ("failed", self.failed), ("dropped", self.dropped)):
                yield Sample(
                    "sluice_warm_starts_total",
                    "counter",
                    "Warm JVMs that were started: those that became ready, that failed, and that ended without a job.",
                    found[kind],
                    {"kind": kind, "result": result},
                )
            seconds = self.seconds.get(kind, 0.0)
            labels = {"kind": kind}
            yield Sample(
                "sluice_warm_cpu_seconds_total",
                "counter",
                "CPU time of warm JVMs until they were ready.",
                seconds,
                labels,
            )


class WarmPool(Generic[W]):
    """A pool of warm processes of several sizes. For one event loop.


    Args:
        make: creates a process that is not started yet.
        sizing: decides how many processes should wait.
        machine: measures the unused resources of the machine.
        clock: monotonic clock, in seconds.
        round_seconds: pause between two rounds.
        in_background: whether processes run at idle priority until they are taken.
        always: whether processes are started even if the machine is busy.
    """

    def __init__(
        self,
        make: Callable[[WarmSize], W],
        sizing: Sizing,
        machine: Machine,
        *,
        clock: Callable[[], float] = time.monotonic,
        round_seconds: float = LOOK_SECONDS,
        in_background: bool = False,
        always: bool = False,
    ) -> None:
        self._always = always
        self._idle_share = IDLE_SHARE_IN_BACKGROUND if in_background else IDLE_SHARE
        self._round_seconds = round_seconds
        self._make = make
        self._sizing = sizing
        self._machine = machine
        self._clock = clock
        self._waiting: list[W] = []
        self._quiet_until = 0.0
        self._backoff = {kind: Backoff() for kind in WarmKind}
        self._starved_since: float | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.figures = PoolFigures()

    def take(self, size: WarmSize) -> W | None:
        """Take a warm process of this size from the pool, for the caller to own; None if there is none."""
        self._sizing.ask(size, self._clock())
        self._quiet_until = self._clock() + QUIET_SECONDS
        for each in self._waiting:
            if each.size == size and each.usable:
                self._waiting.remove(each)
                self.figures.hits[size.kind] += 1
                return each
        self.figures.misses[size.kind] += 1
        return None

    def used(self, kind: WarmKind) -> None:
        """Note that a process that was taken is used by its job."""
        self._backoff[kind].used()

    def unusable(self, kind: WarmKind, why: str) -> None:
        """Note that a process that was taken could not be used, and that its job started without it."""
        self.figures.unusable[kind] += 1
        seconds = self._backoff[kind].unusable(self._clock())
        if seconds:
            _LOG.warning(
                "no warm JVMs for %ss for %d minutes: the last ones could not be used (%s); %s",
                kind,
                round(seconds / 60),
                why,
                REMEDY,
            )
            for each in [each for each in self._waiting if each.size.kind is kind]:
                self._drop(each)

    def waiting(self) -> Counter[WarmSize]:
        """The number of waiting processes, by size."""
        return Counter(each.size for each in self._waiting)

    def samples(self) -> list[Sample]:
        """The figures of the pool as metrics."""
        return list(self.figures.samples(self.waiting()))

    async def run(self) -> None:
        """Maintain the pool until cancelled, then end all processes."""
        try:
            while True:
                await asyncio.sleep(self._round_seconds)
                await self.look()
        finally:
            await self.close()

    async def look(self) -> None:
        """One round: end unwanted processes, and start at most one wanted process."""
        left = self._machine.look()
        wanted = self._sizing.wanted(self._clock())
        for each in [each for each in self._waiting if not each.usable]:
            self._drop(each)
        for size, surplus in (self.waiting() - wanted).items():
            for each in [each for each in self._waiting if each.size == size][:surplus]:
                self._drop(each)
        if self._short(left):
            if self._waiting:
                _LOG.info("memory is short: ending a warm JVM")
                self._drop(self._waiting[0])
            return
        now = self._clock()
        lacking = wanted - self.waiting()
        allowed = (size for size in wanted if lacking[size] and self._backoff[size.kind].allow(now))
        following = next(allowed, None)
        if following is None:
            self._starved_since = None
        elif why := self._obstacle(following, left, now):
            self._starve(following, why, now)
        else:
            self._starved_since = None
            await self._start(following)

    def _obstacle(self, size: WarmSize, left: Resources, now: float) -> str:
        """Why no process of this size can be started now; empty if one can."""
        if left.free_mb - size.memory_mb - OVERHEAD_MB <= RESERVE * left.total_mb:
            return f"{left.free_mb} MiB of memory are free, and {RESERVE:.0%} of the memory must stay free"
        if self._always:
            return ""
        if now < self._quiet_until:
            return f"jobs arrive within {QUIET_SECONDS:.0f} s of each other"
        if left.idle < self._idle_share:
            return f"less than {self._idle_share:.0%} of the CPU time is idle"
        return ""

    def _starve(self, size: WarmSize, why: str, now: float) -> None:
        if self._starved_since is None:
            self._starved_since = now
        elif now - self._starved_since >= STARVED_SECONDS:
            _LOG.warning(
                "for %d minutes no JVM could be started to wait for %ss, now because %s; %s",
                round((now - self._starved_since) / 60),
                size.kind,
                why,
                STARVED_REMEDY,
            )
            self._starved_since = math.inf  # logged once, until a process is started

    async def _start(self, size: WarmSize) -> None:
        made = self._make(size)
        try:
            await self._begun(made)
        except BaseException as error:
            await asyncio.shield(self._closed(made))
            if not isinstance(error, Exception):
                raise
            self.figures.failed[size.kind] += 1
            pause = self._backoff[size.kind].not_started(self._clock())
            why = str(error) or type(error).__name__
            _LOG.warning("no warm JVMs for %ss for %.0f s: %s; %s", size.kind, pause, why, REMEDY)
            return
        self._backoff[size.kind].started()
        self.figures.started[size.kind] += 1
        seconds = self.figures.seconds
        seconds[size.kind] = seconds.get(size.kind, 0.0) + made.used_seconds()
        self._waiting.append(made)
        self._machine.look()  # discards the CPU time that the new process used itself

    async def _begun(self, made: W) -> None:
        starting = asyncio.create_task(made.start(), name="start of a warm JVM")
        until = self._clock() + START_SECONDS
        try:
            while not (await asyncio.wait({starting}, timeout=self._round_seconds))[0]:
                if self._short(self._machine.look()):
                    raise SluiceError("memory is short")
                if self._clock() >= until:
                    raise SluiceError(f"its start took more than {START_SECONDS:.0f} s")
            await starting
        finally:
            await end_tasks(starting)

    def _short(self, left: Resources) -> bool:
        return left.free_mb < PRESSURE * left.total_mb

    def _drop(self, one: W) -> None:
        self._waiting.remove(one)
        self.figures.dropped[one.size.kind] += 1
        task = asyncio.create_task(self._closed(one))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, one: W) -> None:
        try:
            await one.close()
        except (SluiceError, OSError):
            _LOG.exception("cannot remove what a warm JVM left")

    async def close(self) -> None:
        """End all waiting processes."""
        while self._waiting:
            self._drop(self._waiting[0])
        while self._closing:
            await asyncio.shield(asyncio.gather(*self._closing))
