"""What one attempt of a job is, what is told of it, and to whom: to the Dispatcher, and through it to users."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sluice.core.errors import SluiceError
from sluice.core.tracing import Span
from sluice.runtime.checkpoint.ledger import CheckpointsView
from sluice.runtime.gateways import DriverGateway, TaskExecutorGateway, jobmaster_endpoint
from sluice.runtime.jobmanager.attempt.checkpoint_recorder import CheckpointRecorder
from sluice.runtime.jobmanager.attempt.driver_process import DriverAttempt
from sluice.runtime.jobmanager.attempt.executor_pool import ExecutorPool, FailureBudget
from sluice.runtime.jobmanager.attempt.history_log import MAX_EXECUTORS_KEPT, Chronicle
from sluice.runtime.jobmanager.attempt.savepoint_requests import SavepointDesk
from sluice.runtime.jobmanager.attempt.services import JobServices
from sluice.runtime.jobmanager.attempt.shuffle_relay import ShuffleRelay
from sluice.runtime.jobmanager.errors import UiNotFound
from sluice.runtime.jobmanager.gateways import JobMasterInternalGateway, SlotRequirement
from sluice.runtime.jobmanager.job_state import ENDING, JobLifecycle
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.views import (
    ExceptionEntry,
    ExecutorView,
    Failure,
    JobDetail,
    JobRecord,
)
from sluice.runtime.messages import (
    DriverExit,
    Evidence,
    JobProgress,
    JobState,
    StageTable,
    TaskFailure,
    UiPage,
    UiRequest,
)
from sluice.runtime.node.child_process import ChildProcess
from sluice.runtime.node.evidence import from_log, merge
from sluice.runtime.rpc import PermanentlyFencedRpcEndpoint, RemotePeer

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

TOKEN_BYTES = 16
AUTH_SECRET_BYTES = 32
HISTORY_DELAY_SECONDS = 1.0
"""How long what went wrong may wait to be written down for the next leader."""
COLLECT_TIMEOUT_SECONDS = 5.0
"""How long TaskManagers are waited for when the evidence of an ended job is collected, and when it is released."""


class AttemptState(PermanentlyFencedRpcEndpoint):
    """The parts of an attempt, and how it is shown.

    Args:
        before: the job, and what its earlier attempts have left.
        services: of the process.
        attempt: the number of this attempt.
    """

    def __init__(self, before: JobRecord, services: JobServices, *, attempt: int) -> None:
        job_id, submission = before.detail.id, before.submission
        token = secrets.token_bytes(TOKEN_BYTES)
        super().__init__(jobmaster_endpoint(job_id), JobMasterInternalGateway, token, job_id=job_id)
        self.token = token
        self._submission = submission
        self._services = services
        self._clock = services.clock
        self._life = JobLifecycle.resume(before.detail.state, before.detail.timestamps)
        self._started_at = before.detail.start_time
        self._chronicle = Chronicle.of(before)
        self._earlier_connections = before.evidence
        host = services.driver_host
        self._pool = ExecutorPool(
            initial=submission.executors,
            slot_profile=host.executor_size(submission),
            failure_budget=FailureBudget.of(
                services.failure_budget,
                submission.executors,
                {**services.spark_defaults, **submission.spark_conf},
            ),
            next_id=self._chronicle.next_executor,
            idle_timeout=services.slot_idle_timeout,
        )
        self._attempt_number = attempt
        self._attempt = DriverAttempt(host, job_id, self._attempt_number, submission, token)
        self._recorder = CheckpointRecorder(job_id, attempt, services.checkpoints, services.places)
        self._desk = SavepointDesk(before.savepoints)
        self._hopeless = False
        self._idle_pipeline = False
        self._child: ChildProcess | None = None
        self._driver: DriverGateway | None = None
        self._driver_peer: RemotePeer | None = None
        self._result: DriverExit | None = None
        self._failure: Failure | None = None
        self._progress = JobProgress()
        self._stages = StageTable()
        self._span = Span()
        self._spark_auth_secret = secrets.token_hex(AUTH_SECRET_BYTES)
        self._taskmanagers: dict[str, TaskExecutorGateway] = {}
        self._pending_reason = ""
        self._stated: SlotRequirement | None = None
        self._shuffle = ShuffleRelay(services.shuffle, job_id)
        self._history_due = False

    @property
    def _over(self) -> bool:
        """Nothing is wanted for this attempt any more."""
        state = self._life.state
        return state in ENDING or state.terminal or state is JobState.RESTARTING

    async def report_progress(self, progress: JobProgress) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._progress = progress
        self._publish()

    async def report_stages(self, stages: StageTable) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._stages = stages

    async def stages(self) -> StageTable:
        """See :class:`sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._stages

    async def report_task_failure(self, failure: TaskFailure) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        executor = self._pool.get(failure.executor_id)
        self._chronicle.note(
            self._now_ms(),
            failure.error,
            failure.traceback,
            task=f"task {failure.partition} of stage {failure.stage}, try {failure.attempt}",
            executor=failure.executor_id,
            taskmanager=executor.slot.taskmanager if executor is not None else "",
        )
        self._history_changed()

    async def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._chronicle.exceptions

    async def checkpoints(self) -> CheckpointsView:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._recorder.view

    async def connections(self) -> Evidence:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self.deferred(self._collect_connections())

    async def _collect_connections(self) -> Evidence:
        answers = await self._ask_taskmanagers(lambda gateway: gateway.connections(self.job_id))
        driver = await asyncio.to_thread(self._attempt.connections)
        return merge(from_log(self._services.connections, self.job_id), driver, *answers)

    async def ui(self, request: UiRequest) -> UiPage:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        if self._driver is None or self._driver_peer is None or self._driver_peer.closed:
            raise UiNotFound(f"the driver of job {self.job_id} does not run", "its UI is there while it runs")
        return self.deferred(self._driver.ui(request))

    async def _ask_taskmanagers(self, ask: Callable[[TaskExecutorGateway], Coroutine[Any, Any, _T]]) -> list[_T]:
        """The answers of all TaskManagers of this job that give one in time."""
        asked = [asyncio.ensure_future(ask(gateway)) for gateway in self._taskmanagers.values()]
        if not asked:
            return []
        _, late = await asyncio.wait(asked, timeout=COLLECT_TIMEOUT_SECONDS)
        for each in late:
            each.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def _detail(self) -> JobDetail:
        now = self._now_ms()
        end = self._life.timestamps[self._life.state] if self._life.state.terminal else None
        return JobDetail(
            id=self.job_id,
            name=self._submission.name,
            owner=self._submission.owner,
            kind=self._submission.kind,
            state=self._life.state,
            start_time=self._started_at,
            end_time=end,
            duration_ms=(end if end is not None else now) - self._started_at,
            attempt=self._attempt_number,
            progress=self._progress,
            executors=self._executors(),
            timestamps={str(state): at for state, at in self._life.timestamps.items()},
            failure=self._failure,
            pending_reason="" if self._life.state.terminal else self._pending_reason,
            attempts=self._chronicle.attempts,
            checkpoints=self._recorder.view.completed,
        )

    def _executors(self) -> tuple[ExecutorView, ...]:
        """Those of earlier attempts and of this one."""
        return self._chronicle.executors + tuple(
            ExecutorView(
                id=each.id,
                taskmanager=each.slot.taskmanager,
                slot=each.slot.slot,
                state=each.state,
                exit_reason=each.exit_reason,
                started_at=each.started_at,
            )
            for each in self._pool.executors
        )

    def _history_changed(self) -> None:
        """To be told soon: many changes come together."""
        if not self._history_due:
            self._history_due = True
            self.call_later(HISTORY_DELAY_SECONDS, self._tell_history)

    def _tell_history(self) -> None:
        """What the next leader is to know, should this one not live to see the end."""
        self._history_due = False
        if self._life.state.terminal:
            return
        history = JobHistory(
            attempts=self._chronicle.attempts,
            exceptions=self._chronicle.exceptions,
            executors=self._executors()[-MAX_EXECUTORS_KEPT:],
        )
        self.hand_off(
            self._services.dispatcher.job_history(self.job_id, history), failed=self._note("telling the history")
        )

    def _publish(self) -> None:
        if not self._life.state.terminal:
            self.hand_off(self._services.dispatcher.job_updated(self._detail()), failed=self._note("publishing"))

    def _note(self, what: str) -> Callable[[BaseException], None]:
        def note(error: BaseException) -> None:
            if isinstance(error, SluiceError):
                _LOG.info("job %s: %s failed: %s", self.job_id, what, error)
            else:
                self.on_failure(error)

        return note

    def _now_ms(self) -> int:
        return int(self._services.clock() * 1000)
