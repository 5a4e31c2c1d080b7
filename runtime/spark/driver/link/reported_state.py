"""The state that a driver has reported to its JobMaster, and reports again after a reconnection. No I/O.

The driver does not rely on the JobMaster's memory: the next JobMaster may belong to a new leader, which knows only
durable state (ADR 103).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.messages import (
    MAX_KNOWN_SHUFFLES,
    ExecutorTargets,
    JobProgress,
    KnownShuffle,
    RunningDriver,
    SparkRegistration,
    StageTable,
    StreamingState,
)

MAX_GIVEN_UP = 10_000
"""Maximum number of unneeded executors whose end is not known yet; more are not reported again."""

Call = Callable[[JobMasterGateway], Awaitable[object]]


@dataclass(slots=True)
class ReportedState:
    """The latest reported value of each state."""

    registration: SparkRegistration | None = None
    targets: ExecutorTargets | None = None
    streaming: StreamingState | None = None
    progress: JobProgress | None = None
    stages: StageTable | None = None
    stopping: bool = False
    """Whether the driver was told to stop its streaming queries."""
    asked: int = 0
    """How many times the workers of a new shuffle were requested."""
    _shuffles: dict[int, KnownShuffle] = field(default_factory=dict)
    _given_up: dict[int, None] = field(default_factory=dict)

    def spark_started(self, registration: SparkRegistration) -> None:
        """Record that a SparkContext is up. Drops the state of an earlier one."""
        if self.registration is None or self.registration.app_id != registration.app_id:
            self._shuffles.clear()
            self._given_up.clear()
        self.registration, self.targets = registration, None

    def shuffle_placed(self, shuffle_id: int, number: int, partitions: int) -> None:
        """Record that a shuffle has got its workers."""
        self._shuffles[shuffle_id] = KnownShuffle(shuffle_id=shuffle_id, number=number, partitions=partitions)

    def shuffle_over(self, shuffle_id: int) -> None:
        """Record that a shuffle is not needed any more."""
        self._shuffles.pop(shuffle_id, None)

    def executors_given_up(self, executor_ids: Iterable[int]) -> None:
        """Record that Spark wants these executors to end."""
        for executor_id in executor_ids:
            if len(self._given_up) < MAX_GIVEN_UP:
                self._given_up[executor_id] = None

    def executor_exited(self, executor_id: int) -> None:
        """Record that an executor has ended."""
        self._given_up.pop(executor_id, None)

    def running(self, spark_auth_secret: str) -> RunningDriver:
        """The message for a registration; ``spark_auth_secret`` comes from the driver's first assignment."""
        bound, shuffles = "", tuple(self._shuffles.values())
        if self.stopping:
            bound = "it was told to stop streaming for a savepoint, which is no longer taken"
        elif len(shuffles) > MAX_KNOWN_SHUFFLES:
            bound, shuffles = f"it has more than {MAX_KNOWN_SHUFFLES} shuffles", ()
        return RunningDriver(
            spark_auth_secret=spark_auth_secret,
            app_id=self.registration.app_id if self.registration is not None else "",
            shuffles=shuffles,
            shuffles_asked=self.asked,
            bound=bound,
        )

    def calls(self) -> list[Call]:
        """The calls to make after a registration, in order."""
        registration, targets, streaming = self.registration, self.targets, self.streaming
        if registration is None:
            return []
        calls: list[Call] = [lambda jobmaster: jobmaster.spark_started(registration)]
        if targets is not None:
            calls.append(lambda jobmaster: jobmaster.set_executor_targets(targets))
        if self._given_up:
            given_up = tuple(self._given_up)
            calls.append(lambda jobmaster: jobmaster.kill_executors(given_up))
        if streaming is not None:
            calls.append(lambda jobmaster: jobmaster.report_streaming(streaming))
        if (progress := self.progress) is not None:
            calls.append(lambda jobmaster: jobmaster.report_progress(progress))
        if (stages := self.stages) is not None:
            calls.append(lambda jobmaster: jobmaster.report_stages(stages))
        return calls
