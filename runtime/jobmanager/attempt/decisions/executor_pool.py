"""Decides which executors a job has and should have. No I/O.

Level-triggered: the driver states totals, and :meth:`ExecutorPool.decide` compares them with what runs. An ended
executor is replaced because a total is no longer met, not because Spark asks for a replacement (without dynamic
allocation it does not). Failures count against a budget, so executors that cannot start are not relaunched for ever.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from sluice.runtime.jobmanager.attempt.decisions.executor_failures import ExecutorFailures
from sluice.runtime.messages import (
    GIVE_WAY_SECONDS,
    ExecutorExcess,
    ExecutorExit,
    ExecutorTarget,
    ExecutorTargets,
    SlotCount,
    SlotOffer,
    SlotProfile,
    SparkRegistration,
)

SIGNAL_EXIT_BASE = 128
"""A process ended by signal n is reported with exit code 128 + n, as in shells."""

RELAUNCH_PAUSE_SECONDS = 1.0
"""Pause after an executor ended by itself: when a driver ends, its executors end a moment earlier."""

MAX_EXITED_KEPT = 100
"""Most ended executors of a job that are kept for display."""

MAX_EXECUTORS_WANTED = 10_000
"""Most executors, of all sizes together, that are requested for one driver."""

MAX_TARGETS = 100
"""Most sizes of executors that one driver may want at the same time."""


class ExecutorState(enum.StrEnum):
    """The state of an executor: LAUNCHING until its process runs, STOPPING once it was told to end."""

    LAUNCHING = "LAUNCHING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    EXITED = "EXITED"


@dataclass(slots=True)
class Executor:
    """One executor in one slot."""

    id: int
    slot: SlotOffer
    target: ExecutorTarget
    started_at: int
    state: ExecutorState = ExecutorState.LAUNCHING
    exit_reason: str = ""
    failed: bool = False
    """Whether it ended by itself with an error, or its host was lost."""
    leaving: str = ""
    """Why it was told to end; empty when it was not, or the job itself told it."""
    gives_way: bool = False
    """Whether it yields processor time to another executor of the job that was launched just before."""

    @property
    def active(self) -> bool:
        """Whether it counts towards the wanted total."""
        return self.state in {ExecutorState.LAUNCHING, ExecutorState.RUNNING}


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now.

    Attributes:
        launch: executors to launch, each in its slot.
        release: allocations to give back.
        wanted: how many slots of each size the job wants in total.
        retry_at: when to decide again; None when the decision does not depend on the time.
    """

    launch: tuple[Executor, ...]
    release: tuple[str, ...]
    wanted: tuple[SlotCount, ...] = ()
    retry_at: float | None = None


@dataclass
class ExecutorPool:
    """All executors of one driver attempt.

    Attributes:
        initial: how many slots to require before the driver has said what it wants.
        slot_profile: the size of those slots.
        failures: counts executors that ended by themselves against a budget.
        next_id: the number of the next executor.
        idle_timeout: seconds for which slots are held without a SparkContext; then they are given back until there is
            one.
    """

    initial: int
    slot_profile: SlotProfile
    failures: ExecutorFailures
    next_id: int = 1
    idle_timeout: float = float("inf")
    _executors: dict[int, Executor] = field(default_factory=dict)
    _slots: dict[str, SlotOffer] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _targets: ExecutorTargets | None = None
    _registration: SparkRegistration | None = None
    _closed: bool = False
    _pause_until: float = 0.0
    _idle_since: float | None = None
    _idle_timed_out: bool = False

    @property
    def executors(self) -> tuple[Executor, ...]:
        """All executors, ended ones included, by number."""
        return tuple(self._executors.values())

    def get(self, executor_id: int) -> Executor | None:
        """The executor with this number; None when it is unknown."""
        return self._executors.get(executor_id)

    def launched_on(self, executor_id: int, taskmanager: str) -> bool:
        """Whether ``taskmanager`` was told to launch this executor and it has not ended."""
        executor = self._executors.get(executor_id)
        return executor is not None and executor.active and executor.slot.taskmanager == taskmanager

    # --- events ---------------------------------------------------------------------------------------

    def spark_started(self, registration: SparkRegistration) -> list[Executor]:
        """Note a SparkContext: executors can reach its driver, which will state its totals again.

        Returns the executors that must be stopped: those of an earlier SparkContext of the same driver.
        """
        self._targets, self._idle_timed_out = None, False
        earlier, self._registration = self._registration, registration
        if earlier is None or earlier.app_id == registration.app_id:
            return []
        return self.stop(each.id for each in self.executors)

    @property
    def targets_known(self) -> bool:
        """Whether the driver has said how many executors it wants."""
        return self._targets is not None

    @property
    def registration(self) -> SparkRegistration | None:
        """The current SparkContext; None before there is one."""
        return self._registration

    def set_targets(self, targets: ExecutorTargets) -> None:
        """Set the driver's targets, unless their version is older than the last."""
        if self._targets is None or targets.version > self._targets.version:
            self._targets = msgspec.structs.replace(targets, targets=targets.targets[:MAX_TARGETS])

    def offer(self, slot: SlotOffer) -> bool:
        """Take an offered slot; False if it is not, or no longer, wanted."""
        if self._closed:
            return False
        if slot.allocation_id in self._slots:
            return True
        if self._held()[slot.profile] >= self._wanted()[slot.profile]:
            return False
        self._slots[slot.allocation_id] = slot
        return True

    def adopt(self, slot: SlotOffer, now: float) -> bool:
        """Take a slot that a TaskManager has held since an earlier leader; False if it must be freed."""
        if self._closed:
            return False
        running = slot.executor
        if running is not None:
            known = self._executors.get(running.executor_id)
            if known is not None:
                return known.slot.allocation_id == slot.allocation_id
            target = ExecutorTarget(
                resource_profile_id=running.resource_profile_id,
                total=0,
                cores=running.cores,
                memory_mb=running.memory_mb,
            )
            self._executors[running.executor_id] = Executor(
                running.executor_id, slot, target, int(now * 1000), ExecutorState.RUNNING
            )
            self.next_id = max(self.next_id, running.executor_id + 1)
        self._slots[slot.allocation_id] = slot
        return True

    def launched(self, executor_id: int) -> None:
        """Note that the executor's process runs."""
        executor = self._executors.get(executor_id)
        if executor is not None and executor.state is ExecutorState.LAUNCHING:
            executor.state = ExecutorState.RUNNING

    def exited(self, exit_report: ExecutorExit, now: float) -> bool:
        """Note that an executor has ended; False when that was known already, or the executor is unknown."""
        executor = self._executors.get(exit_report.executor_id)
        if executor is None or executor.state is ExecutorState.EXITED:
            return False
        unwanted = executor.state is not ExecutorState.STOPPING
        how = exit_report.reason
        executor.exit_reason = f"{executor.leaving} ({how})" if executor.leaving else how
        executor.state = ExecutorState.EXITED
        executor.failed = unwanted and (exit_report.host_lost or exit_report.exit_code != 0)
        if unwanted and not exit_report.host_lost:
            if exit_report.exit_code != 0:
                self.failures.note(exit_report, now)
            if 0 <= exit_report.exit_code <= SIGNAL_EXIT_BASE:
                self._pause_until = now + RELAUNCH_PAUSE_SECONDS
        self._forget_oldest()
        return True

    def explained(self, error: str, excesses: Iterable[ExecutorExcess]) -> str:
        """``error`` with the last excess of these executors, unless it contains that already.

        Spark only sees that a task ended. The kernel kills a Python worker at once; Spark retries its task, and may
        give up, before the executor is ended for the same reason.
        """
        mine = [each for each in excesses if each.executor_id in self._executors]
        last = max(mine, key=lambda each: each.executor_id, default=None)
        if last is None or last.reason in error:
            return error
        return f"{error} (executor {last.executor_id}: {last.reason})"

    def stop(self, executor_ids: Iterable[int]) -> list[Executor]:
        """Mark executors as stopping; returns those that must be told to end."""
        stopping = [each for i in executor_ids if (each := self._executors.get(i)) is not None and each.active]
        for executor in stopping:
            executor.state = ExecutorState.STOPPING
        return stopping

    def drain(self, allocation_ids: Iterable[str]) -> list[Executor]:
        """Mark slots to be given back; returns the executors in them that must end first."""
        self._leaving |= {each for each in allocation_ids if each in self._slots}
        return self.stop(each.id for each in self.executors if each.slot.allocation_id in self._leaving)

    def slots_lost(self, allocation_ids: Iterable[str]) -> list[Executor]:
        """Forget lost slots; returns the executors in them, which the caller must report as exited."""
        gone = {each for each in allocation_ids if self._slots.pop(each, None) is not None}
        self._leaving -= gone
        return [
            executor
            for executor in self._executors.values()
            if executor.slot.allocation_id in gone and executor.state is not ExecutorState.EXITED
        ]

    def close(self) -> tuple[str, ...]:
        """Want nothing more, because the attempt ends; returns the allocations held."""
        self._closed = True
        held = tuple(self._slots)
        self._slots.clear()
        return held

    # --- decision ---------------------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """Compare the wanted executors with the running ones. Executors in ``launch`` then count as launching."""
        if self._closed:
            return Decision((), ())
        paused = now < self._pause_until
        idle_until = self._idle_until(now)
        launch: list[Executor] = []
        if self._registration is not None and not paused and not self.failures.exhausted:
            for target in self._all_targets():
                launch += self._launch(target, now)
        release = self._surplus()
        wanted = tuple(SlotCount(profile, count) for profile, count in self._wanted().items() if count > 0)
        later = [time for time in (self._pause_until if paused else None, idle_until) if time is not None]
        return Decision(tuple(launch), release, wanted, min(later, default=None))

    def _idle_until(self, now: float) -> float | None:
        """Until when to hold slots without a SparkContext; None when there is no such limit."""
        if self._registration is not None or not self._slots:
            self._idle_since = None
            return None
        if self._idle_since is None:
            self._idle_since = now
        until = self._idle_since + self.idle_timeout
        self._idle_timed_out = self._idle_timed_out or now >= until
        return None if self._idle_timed_out or until == float("inf") else until

    def _launch(self, target: ExecutorTarget, now: float) -> list[Executor]:
        launched: list[Executor] = []
        missing = target.total - self._active(target.resource_profile_id)
        for slot in self._idle():
            if len(launched) >= missing:
                break
            if slot.profile != size_of(target) or slot.allocation_id in self._leaving:
                continue
            executor = Executor(self.next_id, slot, target, int(now * 1000), gives_way=self._another_starts(now))
            self.next_id += 1
            self._executors[executor.id] = executor
            launched.append(executor)
        return launched

    def _another_starts(self, now: float) -> bool:
        since = int((now - GIVE_WAY_SECONDS) * 1000)
        return any(each.active and not each.gives_way and each.started_at >= since for each in self._executors.values())

    def _idle(self) -> list[SlotOffer]:
        busy = {each.slot.allocation_id for each in self._executors.values() if each.state is not ExecutorState.EXITED}
        return [slot for slot in self._slots.values() if slot.allocation_id not in busy]

    def _surplus(self) -> tuple[str, ...]:
        """Remove idle slots that must be given back, or that exceed the wanted number of their size."""
        excess = self._held() - self._wanted()
        released = []
        for slot in self._idle():
            if slot.allocation_id in self._leaving:
                released.append(slot.allocation_id)
            elif excess[slot.profile] > 0:
                released.append(slot.allocation_id)
                excess[slot.profile] -= 1
        for allocation_id in released:
            del self._slots[allocation_id]
        self._leaving.difference_update(released)
        return tuple(released)

    def _wanted(self) -> Counter[SlotProfile]:
        """How many slots of each size are needed, for the driver's totals and for executors that still run."""
        if self._targets is None:
            return Counter({} if self._idle_timed_out else {self.slot_profile: self.initial})
        wanted: Counter[SlotProfile] = Counter()
        left = MAX_EXECUTORS_WANTED
        for each in self._targets.targets:
            total = max(0, min(each.total, left))
            left -= total
            wanted[size_of(each)] += max(total, self._active(each.resource_profile_id))
        return wanted

    def _held(self) -> Counter[SlotProfile]:
        return Counter(slot.profile for key, slot in self._slots.items() if key not in self._leaving)

    def _all_targets(self) -> tuple[ExecutorTarget, ...]:
        return self._targets.targets if self._targets is not None else ()

    def _active(self, resource_profile_id: int) -> int:
        return sum(
            each.active and each.target.resource_profile_id == resource_profile_id for each in self._executors.values()
        )

    def _forget_oldest(self) -> None:
        exited = [each.id for each in self._executors.values() if each.state is ExecutorState.EXITED]
        for executor_id in exited[: max(0, len(exited) - MAX_EXITED_KEPT)]:
            del self._executors[executor_id]


def size_of(target: ExecutorTarget) -> SlotProfile:
    """The size of the slot for an executor of this kind."""
    return SlotProfile(cores=target.cores, memory_mb=target.memory_mb)
