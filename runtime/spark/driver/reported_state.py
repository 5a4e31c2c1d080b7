"""The state that a driver has reported to its JobMaster, and reports again after a reconnection. No I/O.

Nothing depends on what a JobMaster remembers: the next one may be another leader's, which knows only what is durable
(ADR 103).
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
"""Executors that Spark gave up and whose end is not known yet; more are not told of again."""

Call = Callable[[JobMasterGateway], Awaitable[object]]


@dataclass(slots=True)
class ReportedState:
    """The latest of everything that is a state."""

    registration: SparkRegistration | None = None
    targets: ExecutorTargets | None = None
    streaming: StreamingState | None = None
    progress: JobProgress | None = None
    stages: StageTable | None = None
    stopping: bool = False
    """It was told to stop its streaming queries."""
    asked: int = 0
    """How often the place of a shuffle was asked for."""
    _shuffles: dict[int, KnownShuffle] = field(default_factory=dict)
    _given_up: dict[int, None] = field(default_factory=dict)

    def spark_started(self, registration: SparkRegistration) -> None:
        """A SparkContext is up; what is known of an earlier one is void."""
        if self.registration is None or self.registration.app_id != registration.app_id:
            self._shuffles.clear()
            self._given_up.clear()
        self.registration, self.targets = registration, None

    def shuffle_placed(self, shuffle_id: int, number: int, partitions: int) -> None:
        """A shuffle has a place."""
        self._shuffles[shuffle_id] = KnownShuffle(shuffle_id=shuffle_id, number=number, partitions=partitions)

    def shuffle_over(self, shuffle_id: int) -> None:
        """A shuffle is not needed any more."""
        self._shuffles.pop(shuffle_id, None)

    def executors_given_up(self, executor_ids: Iterable[int]) -> None:
        """Spark wants these executors to end."""
        for executor_id in executor_ids:
            if len(self._given_up) < MAX_GIVEN_UP:
                self._given_up[executor_id] = None

    def executor_exited(self, executor_id: int) -> None:
        """An executor has ended."""
        self._given_up.pop(executor_id, None)

    def running(self, spark_auth_secret: str) -> RunningDriver:
        """What is said at a registration; ``spark_auth_secret`` is what the first JobMaster handed out."""
        bound, shuffles = "", tuple(self._shuffles.values())
        if self.stopping:
            bound = "it was told to stop streaming for a savepoint, which nobody takes any more"
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
        """What is said after a registration, in this order."""
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
