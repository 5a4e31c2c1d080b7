"""The pool: starts processes that wait when the machine has nothing else to do, and ends them when it needs memory."""

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
from sluice.runtime.warm.machine import Machine, Resources
from sluice.runtime.warm.setbacks import Setbacks
from sluice.runtime.warm.sizing import Sizing, WarmKind, WarmSize

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
QUIET_SECONDS = 5.0
"""After somebody has asked: a job starts, and is not to be disturbed."""
IDLE_SHARE = 0.25
"""Of the processors' time: a process is started only when so much is idle."""
IDLE_SHARE_IN_BACKGROUND = 0.10
"""The same where a process gets only the time that nobody else wants: with less it takes too long."""
RESERVE = 0.25
"""Of the machine's memory: what stays free when another process is started."""
PRESSURE = 0.10
"""Of the machine's memory: with less of it free, what waits goes, one after the other."""
START_SECONDS = 180.0
"""How long a process may take until it waits; in the background it may have to wait itself."""
OVERHEAD_MB = 400
"""What a waiting process needs besides its heap, at most."""
STARVED_SECONDS = 600.0
"""When none could be started for so long, the log says why."""
REMEDY = "jobs start without meanwhile; [warm] jvms = 0 turns the pool off"
STARVED_REMEDY = (
    'jobs start without meanwhile; [warm] fill = "always" takes the time from jobs, jvms = 0 turns the pool off'
)


class Waiting(Protocol):
    """A process that waits, or is on its way there."""

    @property
    def size(self) -> WarmSize:
        """What it can become."""

    @property
    def usable(self) -> bool:
        """Whether it waits, and nothing has changed that it was started with."""

    async def start(self) -> None:
        """Start it; returns when it waits."""

    async def close(self) -> None:
        """End it, and remove what it has left."""

    def used_seconds(self) -> float:
        """Processor time that it has used."""


W = TypeVar("W", bound=Waiting)


@dataclass(slots=True)
class PoolFigures:
    """What has happened so far; counters by kind."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    started: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    """Ended without a job."""
    in_vain: Counter[str] = field(default_factory=Counter)
    """Could not be used when their job had come, which then started without."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of processors, until they waited."""

    def samples(self, waiting: Mapping[WarmSize, int]) -> Iterator[Sample]:
        """All of it, and how many wait now, as metrics."""
        for kind in WarmKind:
            number = sum(count for size, count in waiting.items() if size.kind is kind)
            yield Sample("sluice_warm_jvms", "gauge", "JVMs that wait for a job.", number, {"kind": kind})
            for result, found in (("hit", self.hits), ("miss", self.misses), ("in_vain", self.in_vain)):
                yield Sample(
                    "sluice_warm_takes_total",
                    "counter",
                    "Drivers and executors that could be a JVM that waits: one was there, none was, or it failed.",
                    found[kind],
                    {"kind": kind, "result": result},
                )
            for result, found in (("waits", self.started), ("failed", self.failed), ("dropped", self.dropped)):
                yield Sample(
                    "sluice_warm_starts_total",
                    "counter",
                    "JVMs that were started to wait: those that did, that could not, and that ended without a job.",
                    found[kind],
                    {"kind": kind, "result": result},
                )
            seconds = self.seconds.get(kind, 0.0)
            labels = {"kind": kind}
            yield Sample(
                "sluice_warm_cpu_seconds_total", "counter", "Processor time of JVMs until they waited.", seconds, labels
            )


class WarmPool(Generic[W]):
    """See the module's documentation.

    Args:
        make: a process that has not been started.
        sizing: how many should wait.
        machine: what is left of it.
        clock: seconds.
        round_seconds: between two looks.
        in_background: whether processes get only the time that nobody else wants, until they are taken.
        always: whether they are started however busy the machine is.
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
        self._setbacks = {kind: Setbacks() for kind in WarmKind}
        self._starved_since: float | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.figures = PoolFigures()

    def take(self, size: WarmSize) -> W | None:
        """One that waits; it is the caller's from now on. None: there is none, and the job starts as without a pool."""
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
        """One that was taken has become what its job wanted."""
        self._setbacks[kind].used()

    def in_vain(self, kind: WarmKind, why: str) -> None:
        """One that was taken could not be used, and its job has started without."""
        self.figures.in_vain[kind] += 1
        seconds = self._setbacks[kind].in_vain(self._clock())
        if seconds:
            _LOG.warning(
                "no JVM waits for %ss for %d minutes: those that waited could not be used (%s); %s",
                kind,
                round(seconds / 60),
                why,
                REMEDY,
            )
            for each in [each for each in self._waiting if each.size.kind is kind]:
                self._drop(each)

    def waiting(self) -> Counter[WarmSize]:
        """How many wait."""
        return Counter(each.size for each in self._waiting)

    def samples(self) -> list[Sample]:
        """Its figures as metrics."""
        return list(self.figures.samples(self.waiting()))

    async def run(self) -> None:
        """Keep as many waiting as should, until cancelled; then all end."""
        try:
            while True:
                await asyncio.sleep(self._round_seconds)
                await self.look()
        finally:
            await self.close()

    async def look(self) -> None:
        """One round: end what is not wanted, start one that is."""
        left = self._machine.look()
        wanted = self._sizing.wanted(self._clock())
        for each in [each for each in self._waiting if not each.usable]:
            self._drop(each)
        for size, surplus in (self.waiting() - wanted).items():
            for each in [each for each in self._waiting if each.size == size][:surplus]:
                self._drop(each)
        if self._short(left):
            if self._waiting:
                _LOG.info("memory is short: a JVM that waits for a job is ended")
                self._drop(self._waiting[0])
            return
        now = self._clock()
        lacking = wanted - self.waiting()
        allowed = (size for size in wanted if lacking[size] and self._setbacks[size.kind].allow(now))
        following = next(allowed, None)
        if following is None:
            self._starved_since = None
        elif why := self._obstacle(following, left, now):
            self._starve(following, why, now)
        else:
            self._starved_since = None
            await self._start(following)

    def _obstacle(self, size: WarmSize, left: Resources, now: float) -> str:
        """Why none can be started now; empty: it can."""
        if left.free_mb - size.memory_mb - OVERHEAD_MB <= RESERVE * left.total_mb:
            return f"{left.free_mb} MiB of memory are free, and {RESERVE:.0%} are to stay so"
        if self._always:
            return ""
        if now < self._quiet_until:
            return f"jobs come within {QUIET_SECONDS:.0f} s of each other"
        if left.idle < self._idle_share:
            return f"less than {self._idle_share:.0%} of the processors is idle"
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
            self._starved_since = math.inf  # said once, until one is started

    async def _start(self, size: WarmSize) -> None:
        made = self._make(size)
        try:
            await self._begun(made)
        except BaseException as error:
            await asyncio.shield(self._closed(made))
            if not isinstance(error, Exception):
                raise
            self.figures.failed[size.kind] += 1
            pause = self._setbacks[size.kind].not_started(self._clock())
            why = str(error) or type(error).__name__
            _LOG.warning("no JVM waits for %ss for %.0f s: %s; %s", size.kind, pause, why, REMEDY)
            return
        self._setbacks[size.kind].started()
        self.figures.started[size.kind] += 1
        seconds = self.figures.seconds
        seconds[size.kind] = seconds.get(size.kind, 0.0) + made.used_seconds()
        self._waiting.append(made)
        self._machine.look()  # what it has used itself says nothing of others

    async def _begun(self, made: W) -> None:
        starting = asyncio.create_task(made.start(), name="a JVM on its way to wait")
        until = self._clock() + START_SECONDS
        try:
            while not (await asyncio.wait({starting}, timeout=self._round_seconds))[0]:
                if self._short(self._machine.look()):
                    raise SluiceError("memory is short")
                if self._clock() >= until:
                    raise SluiceError(f"it took more than {START_SECONDS:.0f} s")
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
            _LOG.exception("what a JVM that waited has left could not be removed")

    async def close(self) -> None:
        """End all that wait."""
        while self._waiting:
            self._drop(self._waiting[0])
        while self._closing:
            await asyncio.shield(asyncio.gather(*self._closing))
