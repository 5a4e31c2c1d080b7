"""Which executors a job has and should have: the JobMaster's decisions, apart from its I/O.

Level-triggered: the driver states totals, and :meth:`ExecutorPool.decide` compares them with what runs. An
executor that ends is replaced because a total is no longer met, not because somebody asks (Spark does not,
without dynamic allocation). Failures count against a budget, so that executors that cannot start do not
loop for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from runtime.messages import ExecutorExit, ExecutorTarget, ExecutorTargets, SlotOffer, SlotProfile, SparkRegistration

SIGNAL_EXIT_BASE = 128
"""A process ended by signal n is reported with exit code 128 + n, as shells do."""

RELAUNCH_PAUSE_SECONDS = 1.0
"""Wait after an executor that ended by itself: when a driver ends, its executors end a moment earlier."""

MAX_EXITED_KEPT = 100
"""How many ended executors of a job are remembered for display."""


class ExecutorState(enum.StrEnum):
    """LAUNCHING until the process runs, STOPPING once somebody wants it gone."""

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
    """It ended by itself and not in order, or its host was lost."""

    @property
    def active(self) -> bool:
        """Counts towards its total."""
        return self.state in {ExecutorState.LAUNCHING, ExecutorState.RUNNING}


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now.

    Attributes:
        launch: executors to launch, each in its slot.
        release: allocations to give back.
        slots_wanted: how many slots the job wants in total.
        profile: how large they must be.
        retry_at: when to decide again because of a pause; None when no pause is in force.
    """

    launch: tuple[Executor, ...]
    release: tuple[str, ...]
    slots_wanted: int
    profile: SlotProfile
    retry_at: float | None = None


@dataclass
class ExecutorPool:
    """All executors of one driver attempt.

    Attributes:
        initial: how many slots to ask for before the driver has said what it wants.
        slot_profile: how large those must be.
        failure_budget: how many executors may end by themselves.
        next_id: number of the first executor.
    """

    initial: int
    slot_profile: SlotProfile
    failure_budget: int
    next_id: int = 1
    failures: int = 0
    last_failure: str = ""
    _executors: dict[int, Executor] = field(default_factory=dict)
    _slots: dict[str, SlotOffer] = field(default_factory=dict)
    _targets: ExecutorTargets | None = None
    _registration: SparkRegistration | None = None
    _closed: bool = False
    _pause_until: float = 0.0

    @property
    def executors(self) -> tuple[Executor, ...]:
        """All executors, ended ones included, by number."""
        return tuple(self._executors.values())

    @property
    def budget_exhausted(self) -> bool:
        """Too many executors have ended by themselves."""
        return self.failures > self.failure_budget

    def get(self, executor_id: int) -> Executor | None:
        """The executor with this number."""
        return self._executors.get(executor_id)

    def launched_on(self, executor_id: int, taskmanager: str) -> bool:
        """Whether ``taskmanager`` was told to launch this executor and it has not ended."""
        executor = self._executors.get(executor_id)
        return executor is not None and executor.active and executor.slot.taskmanager == taskmanager

    # --- events ---------------------------------------------------------------------------------------

    def spark_started(self, registration: SparkRegistration) -> list[Executor]:
        """The driver can be reached by executors, and will say anew how many it wants.

        Returns the executors that have to be stopped: those of an earlier SparkContext of the same driver.
        """
        self._targets = None
        earlier, self._registration = self._registration, registration
        if earlier is None or earlier.app_id == registration.app_id:
            return []
        return self.stop(each.id for each in self.executors)

    @property
    def registration(self) -> SparkRegistration | None:
        """The SparkContext that is up; None before there is one."""
        return self._registration

    def set_targets(self, targets: ExecutorTargets) -> None:
        """The driver's wish; an older version than the last is ignored."""
        if self._targets is None or targets.version > self._targets.version:
            self._targets = targets

    def offer(self, slot: SlotOffer) -> bool:
        """A slot is offered; False when it is not wanted (any more)."""
        if self._closed:
            return False
        if slot.allocation_id in self._slots:
            return True
        if len(self._slots) >= self._wanted():
            return False
        self._slots[slot.allocation_id] = slot
        return True

    def launched(self, executor_id: int) -> None:
        """The executor's process runs."""
        executor = self._executors.get(executor_id)
        if executor is not None and executor.state is ExecutorState.LAUNCHING:
            executor.state = ExecutorState.RUNNING

    def exited(self, exit_report: ExecutorExit, now: float) -> bool:
        """An executor has ended; False when that was known or it is unknown."""
        executor = self._executors.get(exit_report.executor_id)
        if executor is None or executor.state is ExecutorState.EXITED:
            return False
        unwanted = executor.state is not ExecutorState.STOPPING
        executor.state, executor.exit_reason = ExecutorState.EXITED, exit_report.reason
        executor.failed = unwanted and (exit_report.host_lost or exit_report.exit_code != 0)
        if unwanted and not exit_report.host_lost:
            if exit_report.exit_code != 0:
                self.failures += 1
                self.last_failure = exit_report.reason
            if 0 <= exit_report.exit_code <= SIGNAL_EXIT_BASE:
                self._pause_until = now + RELAUNCH_PAUSE_SECONDS
        self._forget_oldest()
        return True

    def stop(self, executor_ids: Iterable[int]) -> list[Executor]:
        """These are to end; returns those that have to be told."""
        stopping = [each for i in executor_ids if (each := self._executors.get(i)) is not None and each.active]
        for executor in stopping:
            executor.state = ExecutorState.STOPPING
        return stopping

    def slots_lost(self, allocation_ids: Iterable[str]) -> list[Executor]:
        """Slots are gone; returns the executors that went with them, still to be reported as exited."""
        gone = {each for each in allocation_ids if self._slots.pop(each, None) is not None}
        return [
            executor
            for executor in self._executors.values()
            if executor.slot.allocation_id in gone and executor.state is not ExecutorState.EXITED
        ]

    def close(self) -> tuple[str, ...]:
        """The attempt is over: nothing is wanted; returns the allocations held."""
        self._closed = True
        held = tuple(self._slots)
        self._slots.clear()
        return held

    # --- decision ---------------------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """Compare wish and reality; what is returned as ``launch`` counts as launching from now on."""
        if self._closed:
            return Decision((), (), 0, self.slot_profile)
        paused = now < self._pause_until
        launch: list[Executor] = []
        if self._registration is not None and not paused and not self.budget_exhausted:
            for target in self._all_targets():
                launch += self._launch(target, now)
        profile = self._largest()
        release = self._surplus() if self._targets is not None else ()
        return Decision(tuple(launch), release, self._wanted(), profile, self._pause_until if paused else None)

    def _launch(self, target: ExecutorTarget, now: float) -> list[Executor]:
        launched: list[Executor] = []
        missing = target.total - self._active(target.resource_profile_id)
        for slot in self._idle():
            if len(launched) >= missing:
                break
            if slot.profile.cores < target.cores or slot.profile.memory_mb < target.memory_mb:
                continue
            executor = Executor(self.next_id, slot, target, int(now * 1000))
            self.next_id += 1
            self._executors[executor.id] = executor
            launched.append(executor)
        return launched

    def _idle(self) -> list[SlotOffer]:
        busy = {each.slot.allocation_id for each in self._executors.values() if each.state is not ExecutorState.EXITED}
        return [slot for slot in self._slots.values() if slot.allocation_id not in busy]

    def _surplus(self) -> tuple[str, ...]:
        """Idle slots beyond what is wanted, and idle slots too small for anything wanted."""
        largest = self._largest()
        excess = len(self._slots) - self._wanted()
        released = []
        for slot in self._idle():
            too_small = slot.profile.cores < largest.cores or slot.profile.memory_mb < largest.memory_mb
            if excess > 0 or too_small:
                released.append(slot.allocation_id)
                excess -= 1
        for allocation_id in released:
            del self._slots[allocation_id]
        return tuple(released)

    def _wanted(self) -> int:
        if self._targets is None:
            return self.initial
        return sum(max(each.total, self._active(each.resource_profile_id)) for each in self._targets.targets)

    def _largest(self) -> SlotProfile:
        targets = [each for each in self._all_targets() if each.total > 0]
        if not targets:
            return self.slot_profile
        return SlotProfile(cores=max(each.cores for each in targets), memory_mb=max(each.memory_mb for each in targets))

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
