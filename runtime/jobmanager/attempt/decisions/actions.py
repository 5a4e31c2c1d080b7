"""The actions of an attempt's state machine: plain values that the JobMaster carries out in order."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from sluice.runtime.checkpoint import Checkpoint
from sluice.runtime.jobmanager.store import JobHistory
from sluice.runtime.jobmanager.views import JobDetail, JobRecord, SavepointRequest
from sluice.runtime.messages import ExecutorExit, ExecutorTarget, RunningDriver, SlotCount, SlotOffer, SparkRegistration


class Timer(enum.Enum):
    """The purpose of a timer of an attempt."""

    DRIVER_REGISTRATION = enum.auto()
    """Deadline for the registration of the driver."""
    DRIVER_EXIT = enum.auto()
    """Deadline for the end of the driver's process; then it is killed."""
    STREAMING_STOPPED = enum.auto()
    """Deadline for the end of the pipeline after its streaming queries were stopped for a savepoint."""
    DRAINED = enum.auto()
    """Deadline for the end of executors whose slots must be given back; then they are killed."""
    RECONCILE = enum.auto()
    """Compare wanted and running executors again."""
    REQUIREMENT = enum.auto()
    """Repeat an unmet slot requirement."""
    DRIVER_REQUIREMENT = enum.auto()
    """Repeat the requirement of a slot for the driver."""
    DRIVER_PLACED = enum.auto()
    """The offer of the driver's slot has been answered: start the driver."""
    DRIVER_GONE = enum.auto()
    """Deadline by which a lost driver has certainly ended by itself."""
    HISTORY = enum.auto()
    """Write the changed history."""
    DRIVER_RETURN = enum.auto()
    """Deadline for the registration of a driver that an earlier leader started; then it counts as gone."""
    DRIVER_LOOK = enum.auto()
    """Check whether the TaskManager of such a driver still has it."""
    EXECUTORS_RETURN = enum.auto()
    """Deadline for TaskManagers to offer the executors of such a driver."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report ``timer``, with ``executor_ids``, after ``seconds``."""

    timer: Timer
    seconds: float
    executor_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreCheckpoint:
    """Find the checkpoint to continue from: the job's last one, else that of ``savepoint``, if any."""

    savepoint: str


@dataclass(frozen=True, slots=True)
class RequireDriverSlot:
    """Require a slot for the driver from the ResourceManager."""


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start the driver's process in ``slot``."""

    slot: SlotOffer


@dataclass(frozen=True, slots=True)
class LookForDriver:
    """Ask the ResourceManager whether ``taskmanager`` has the driver that an earlier leader started."""

    taskmanager: str


@dataclass(frozen=True, slots=True)
class AdoptDriver:
    """Take over a driver that an earlier leader started in ``slot``; ``running`` is what it reports."""

    slot: SlotOffer
    running: RunningDriver | None


@dataclass(frozen=True, slots=True)
class ReportHeldSlotsSettled:
    """Tell the ResourceManager that no more slots held for this job are expected from TaskManagers."""


@dataclass(frozen=True, slots=True)
class EndDriver:
    """Ask the driver to end within ``grace`` seconds; end its process if the driver cannot be reached."""

    grace: float


@dataclass(frozen=True, slots=True)
class StopDriver:
    """End the driver's process: SIGTERM, and SIGKILL after ``grace`` seconds."""

    grace: float


@dataclass(frozen=True, slots=True)
class StopStreaming:
    """Ask the driver to stop its streaming queries within ``grace`` seconds."""

    grace: float


@dataclass(frozen=True, slots=True)
class LaunchExecutor:
    """Launch an executor in ``slot`` for the SparkContext ``spark``."""

    executor_id: int
    slot: SlotOffer
    target: ExecutorTarget
    spark: SparkRegistration
    gives_way: bool = False
    """Whether it yields processor time to another executor of the job that starts at the same time."""


@dataclass(frozen=True, slots=True)
class KillExecutor:
    """End an executor."""

    executor_id: int
    taskmanager: str


@dataclass(frozen=True, slots=True)
class ReportExecutorExit:
    """Tell the driver that an executor has ended."""

    exit_report: ExecutorExit


@dataclass(frozen=True, slots=True)
class DecommissionExecutors:
    """Have the driver move the blocks of executors elsewhere, and end the executors."""

    executor_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RequireSlots:
    """Tell the ResourceManager how many slots of each size the job wants in total."""

    wanted: tuple[SlotCount, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """Give a slot back to the ResourceManager."""

    allocation_id: str


@dataclass(frozen=True, slots=True)
class RecordCheckpoint:
    """Write a completed checkpoint to the HA storage."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class TakeSavepoint:
    """Copy ``checkpoint`` to the savepoint of ``request``."""

    request: SavepointRequest
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class SettleCheckpoints:
    """Wait, for a limited time, until completed checkpoints are written."""


@dataclass(frozen=True, slots=True)
class CollectRecords:
    """Ask the TaskManagers for evidence of the attempt's TLS connections, and for executors that exceeded a limit."""


@dataclass(frozen=True, slots=True)
class AskForRestart:
    """Ask the Dispatcher whether and when the next attempt starts."""


@dataclass(frozen=True, slots=True)
class PublishDetail:
    """Publish the current state of the job to the Dispatcher."""

    detail: JobDetail


@dataclass(frozen=True, slots=True)
class KeepHistory:
    """Have the Dispatcher store the history for the next leader."""

    history: JobHistory


@dataclass(frozen=True, slots=True)
class EndJob:
    """Report the job's result, and give everything back."""

    record: JobRecord


@dataclass(frozen=True, slots=True)
class ScheduleNextAttempt:
    """Give everything back, and hand over to the next attempt, which begins after ``delay`` seconds."""

    record: JobRecord
    delay: float


Action = (
    StartTimer
    | RestoreCheckpoint
    | RequireDriverSlot
    | StartDriver
    | LookForDriver
    | AdoptDriver
    | ReportHeldSlotsSettled
    | EndDriver
    | StopDriver
    | StopStreaming
    | LaunchExecutor
    | KillExecutor
    | ReportExecutorExit
    | DecommissionExecutors
    | RequireSlots
    | ReleaseSlot
    | RecordCheckpoint
    | TakeSavepoint
    | SettleCheckpoints
    | CollectRecords
    | AskForRestart
    | PublishDetail
    | KeepHistory
    | EndJob
    | ScheduleNextAttempt
)


class Outbox:
    """The queue of actions that the JobMaster takes.

    Args:
        detail: returns the job as it is shown now; None when its result is shown instead.
    """

    def __init__(self, detail: Callable[[], JobDetail | None]) -> None:
        self._detail = detail
        self._changed = False
        self._actions: list[Action] = []

    def add(self, *actions: Action) -> None:
        """Append actions."""
        self._actions.extend(actions)

    def publish(self) -> None:
        """Publish the changed job; once for all changes of an event."""
        self._changed = True

    def take(self) -> tuple[Action, ...]:
        """Remove and return the queued actions."""
        detail = self._detail() if self._changed else None
        shown = () if detail is None else (PublishDetail(detail),)
        taken = (*shown, *self._actions)
        self._actions.clear()
        self._changed = False
        return taken
