"""Checkpoints of an attempt's streaming queries, and savepoints of the job. Decisions only; no I/O."""

from __future__ import annotations

from collections.abc import Callable

from sluice.runtime.checkpoint import Savepoint, SavepointFailed
from sluice.runtime.jobmanager.attempt.decisions.actions import (
    Outbox,
    RecordCheckpoint,
    StartTimer,
    StopStreaming,
    TakeSavepoint,
    Timer,
)
from sluice.runtime.jobmanager.attempt.decisions.driver_status import CONCLUDING, DriverStatus
from sluice.runtime.jobmanager.attempt.decisions.job_status import JobStatus
from sluice.runtime.messages import JobState, StreamingState

STOP_STREAMING_SECONDS = 30.0
"""How long a pipeline may run after its streaming queries were stopped for a savepoint."""


class StreamingControl:
    """Turns reports about streaming queries into checkpoints, and requests for savepoints into actions.

    Args:
        cancel_grace: seconds that a query gets to finish its batch.
        fail: fails the attempt for a reason.
        end_driver: asks the driver to end.
        savepoint_over: called when a savepoint is complete, or failed.

    Attributes:
        pipeline_stopped: whether the pipeline was ended after its queries were stopped for a savepoint.
    """

    def __init__(
        self,
        status: JobStatus,
        driver: DriverStatus,
        outbox: Outbox,
        *,
        cancel_grace: float,
        fail: Callable[[str], None],
        end_driver: Callable[[], None],
        savepoint_over: Callable[[], None],
    ) -> None:
        self._status = status
        self._driver = driver
        self._outbox = outbox
        self._cancel_grace = cancel_grace
        self._fail = fail
        self._end_driver = end_driver
        self._savepoint_over = savepoint_over
        self.pipeline_stopped = False

    def reported(self, state: StreamingState) -> None:
        """Update the checkpoints: a batch was committed, or a streaming query began or ended."""
        completed = self._status.checkpoints.update(state, self._status.now_ms)
        if completed is not None:
            self._outbox.add(RecordCheckpoint(completed))
        for query_id in self._status.checkpoints.unnamed():
            self._status.note(
                f"the streaming query {query_id} has no name: a later attempt starts it over; name it with queryName()"
            )
        if self._status.checkpoints.problem:
            self._driver.restart_useless = True
            self._fail(self._status.checkpoints.problem)
        self._outbox.publish()

    def savepoint_requested(self, savepoint_id: str, *, stop: bool) -> None:
        """Take a savepoint; with ``stop``, the job ends with it.

        Raises:
            SavepointFailed: the job does not run, or is ending, has no checkpoint yet, or another one is being taken.
            NotStreaming: no streaming query with a name runs.
        """
        if self._driver.result is not None or self._driver.phase in CONCLUDING:
            raise SavepointFailed("the driver of the job has ended its work", "see the result of the job")
        view = self._status.checkpoints.view
        self._status.savepoints.add(savepoint_id, self._status.state, view, self._status.now_ms, stop=stop)
        if stop:
            grace = self._cancel_grace
            self._outbox.add(StopStreaming(grace), StartTimer(Timer.STREAMING_STOPPED, grace + STOP_STREAMING_SECONDS))
        else:
            self.take_savepoint()

    def not_stopped(self, error: str) -> None:
        """Fail the savepoint: the driver could not be told to stop its streaming queries."""
        self._status.savepoints.fail(f"the driver could not be told to stop: {error}")

    def stop_due(self) -> None:
        """End a pipeline that still runs after its queries were stopped: it has nothing left to do."""
        if self._status.savepoints.stopping and self._status.state is JobState.RUNNING:
            self.pipeline_stopped = True
            self._end_driver()

    def take_savepoint(self) -> bool:
        """Take the requested savepoint; False when none is requested, or there is no checkpoint."""
        request, checkpoint = self._status.savepoints.current, self._status.checkpoints.view.latest
        if request is None or checkpoint is None:
            return False
        self._outbox.add(TakeSavepoint(request, checkpoint))
        return True

    def savepoint_taken(self, savepoint: Savepoint) -> None:
        """Note that a savepoint is complete."""
        self._status.savepoints.complete(savepoint)
        self._savepoint_over()

    def savepoint_failed(self, error: str) -> None:
        """Note that a savepoint could not be taken."""
        self._status.savepoints.fail(error)
        self._savepoint_over()
