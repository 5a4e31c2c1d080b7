"""Checkpoints and savepoints of an attempt that has streaming queries."""

from __future__ import annotations

import logging

from sluice.core.errors import SluiceError
from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.jobmanager.attempt.executors import AttemptExecutors
from sluice.runtime.jobmanager.views import SavepointRequest
from sluice.runtime.messages import JobState, StreamingState

_LOG = logging.getLogger(__name__)

STOP_SECONDS = 30.0
"""How long a pipeline may go on after its streaming queries were stopped for a savepoint."""
UNNAMED_CONSEQUENCE = "a later attempt begins it anew; name it with queryName()"


class AttemptStreaming(AttemptExecutors):
    """Records what streaming queries commit, and takes savepoints of it."""

    async def report_streaming(self, state: StreamingState) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        if self._recorder.told(state, self._now_ms()):
            self.hand_off(self._recorder.record(), failed=self._note("recording a checkpoint"))
        for query_id in self._recorder.unnamed():
            self._chronicle.note(self._now_ms(), f"the streaming query {query_id} has no name: {UNNAMED_CONSEQUENCE}")
            self._history_changed()
        if self._recorder.problem:
            self._hopeless = True
            self._fail(self._recorder.problem)
        self._publish()

    async def savepoints(self) -> tuple[SavepointRequest, ...]:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._desk.requests

    async def trigger_savepoint(self, savepoint_id: str, stop: bool) -> None:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        self._desk.ask(savepoint_id, self._life.state, self._recorder.view, self._now_ms(), stop=stop)
        if not stop:
            self.hand_off(self._take_savepoint())
        elif self._driver is not None:
            grace = self._services.cancel_grace
            self.hand_off(self._driver.stop_streaming(grace), failed=self._not_stopped)
            self.call_later(grace + STOP_SECONDS, self._end_stopping)

    async def _take_savepoint(self) -> None:
        request, checkpoint = self._desk.current, self._recorder.view.latest
        if request is None or checkpoint is None:
            return
        description = Savepoint(
            id=request.id,
            path="",
            job_id=self.job_id,
            job_name=self._submission.name,
            owner=self._submission.owner,
            created_at=self._now_ms(),
            stopped=request.stop,
            checkpoint=checkpoint,
            files=0,
            size=0,
        )
        try:
            savepoint = await self._recorder.take_savepoint(request.id, description)
        except SluiceError as error:
            _LOG.error("job %s: %s failed: %s", self.job_id, request.id, error)
            self._desk.fail(str(error))
            return
        _LOG.info("job %s: %s has %d bytes", self.job_id, savepoint.id, savepoint.size)
        self._desk.done(savepoint)

    def _not_stopped(self, error: BaseException) -> None:
        self._desk.fail(f"the driver could not be told to stop: {error}")

    def _end_stopping(self) -> None:
        """The queries have ended, but the pipeline goes on: it has nothing to go on with."""
        if self._desk.stopping and self._life.state is JobState.RUNNING:
            self._idle_pipeline = True
            self._end_driver()
