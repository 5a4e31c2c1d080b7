"""The actions that an attempt's state machine wants: plain values, which the JobMaster carries out in order."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from sluice.runtime.checkpoint import Checkpoint
from sluice.runtime.jobmanager.store import JobHistory
from sluice.runtime.jobmanager.views import JobDetail, JobRecord, SavepointRequest
from sluice.runtime.messages import ExecutorExit, ExecutorTarget, RunningDriver, SlotCount, SlotOffer, SparkRegistration


class Timer(enum.Enum):
    """What a timer of an attempt is for."""

    DRIVER_REGISTRATION = enum.auto()
    """The driver must have registered."""
    DRIVER_EXIT = enum.auto()
    """The driver's process must have ended; it is killed."""
    STREAMING_STOPPED = enum.auto()
    """The pipeline must have ended after its streaming queries were stopped for a savepoint."""
    DRAINED = enum.auto()
    """Executors whose slots are to be given back must have ended; they are killed."""
    RECONCILE = enum.auto()
    """Compare wanted and running executors again."""
    REQUIREMENT = enum.auto()
    """State an unmet slot requirement again."""
    DRIVER_REQUIREMENT = enum.auto()
    """State again that a slot for the driver is wanted."""
    DRIVER_PLACED = enum.auto()
    """The offer of the driver's slot is answered."""
    DRIVER_GONE = enum.auto()
    """A driver that was lost must have ended by itself."""
    HISTORY = enum.auto()
    """Write the changed history down."""
    DRIVER_RETURN = enum.auto()
    """A driver that runs since an earlier leader must have registered, or is gone."""
    DRIVER_LOOK = enum.auto()
    """Ask whether the TaskManager of such a driver still has it."""
    EXECUTORS_RETURN = enum.auto()
    """TaskManagers must have offered the executors of such a driver."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report ``timer`` after ``seconds``; ``executor_ids`` go with it."""

    timer: Timer
    seconds: float
    executor_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreCheckpoint:
    """Find the checkpoint that the attempt goes on from: the job's last one, else that of ``savepoint``, if any."""

    savepoint: str


@dataclass(frozen=True, slots=True)
class RequireDriverSlot:
    """State to the ResourceManager that the job wants a slot for its driver."""


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start the driver's process in ``slot``."""

    slot: SlotOffer


@dataclass(frozen=True, slots=True)
class LookForDriver:
    """Ask the ResourceManager whether ``taskmanager`` has the driver that runs since an earlier leader."""

    taskmanager: str


@dataclass(frozen=True, slots=True)
class AdoptDriver:
    """Go on with a driver that runs in ``slot`` since an earlier leader; ``running`` is what it says of itself."""

    slot: SlotOffer
    running: RunningDriver | None


@dataclass(frozen=True, slots=True)
class JobSettled:
    """Tell the ResourceManager that no more slots are expected that TaskManagers have held for this job."""


@dataclass(frozen=True, slots=True)
class EndDriver:
    """Ask the driver to end within ``grace`` seconds; end its process if it cannot be asked."""

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
    """To another executor of the job that starts at the same time."""


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
    """Have the driver move the blocks of executors elsewhere and end them."""

    executor_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RequireSlots:
    """State to the ResourceManager how many slots of which sizes the job wants in total."""

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
    """Copy ``checkpoint`` for ``request``."""

    request: SavepointRequest
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class SettleCheckpoints:
    """Wait until completed checkpoints are written, but not for ever."""


@dataclass(frozen=True, slots=True)
class CollectRecords:
    """Ask the TaskManagers for evidence of the attempt's TLS connections, and which executors exceeded a bound."""


@dataclass(frozen=True, slots=True)
class AskForRestart:
    """Ask the Dispatcher whether and when there is to be another attempt."""


@dataclass(frozen=True, slots=True)
class PublishDetail:
    """Show the Dispatcher the present state of the job."""

    detail: JobDetail


@dataclass(frozen=True, slots=True)
class KeepHistory:
    """Have the Dispatcher write the history down for the next leader."""

    history: JobHistory


@dataclass(frozen=True, slots=True)
class EndJob:
    """Report the job's result, and give everything back."""

    record: JobRecord


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give everything back, and leave the job to the next attempt, which begins after ``delay`` seconds."""

    record: JobRecord
    delay: float


Action = (
    StartTimer
    | RestoreCheckpoint
    | RequireDriverSlot
    | StartDriver
    | LookForDriver
    | AdoptDriver
    | JobSettled
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
    | HandOver
)


class Outbox:
    """Actions that wait to be taken, in order.

    Args:
        detail: the job as it is shown now; None when its result is what is shown.
    """

    def __init__(self, detail: Callable[[], JobDetail | None]) -> None:
        self._detail = detail
        self._changed = False
        self._actions: list[Action] = []

    def add(self, *actions: Action) -> None:
        """Append actions."""
        self._actions.extend(actions)

    def publish(self) -> None:
        """What is shown of the job has changed; told once for all changes of an event."""
        self._changed = True

    def take(self) -> tuple[Action, ...]:
        """What waits; it waits no longer."""
        detail = self._detail() if self._changed else None
        shown = () if detail is None else (PublishDetail(detail),)
        taken = (*shown, *self._actions)
        self._actions.clear()
        self._changed = False
        return taken
