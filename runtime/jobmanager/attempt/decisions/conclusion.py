"""The end of an attempt, from the end of its driver's process to the decision about the next one. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.runtime.jobmanager.attempt.decisions.actions import (
    AskForRestart,
    CollectRecords,
    EndJob,
    Outbox,
    ScheduleNextAttempt,
)
from sluice.runtime.jobmanager.attempt.decisions.driver_status import CONCLUDING, DriverStatus, Phase
from sluice.runtime.jobmanager.attempt.decisions.executor_control import ExecutorControl
from sluice.runtime.jobmanager.attempt.decisions.executor_pool import ExecutorPool
from sluice.runtime.jobmanager.attempt.decisions.history_log import LOST
from sluice.runtime.jobmanager.attempt.decisions.job_status import JobStatus
from sluice.runtime.jobmanager.attempt.decisions.streaming_control import StreamingControl
from sluice.runtime.jobmanager.job_state import Verdict, judge_attempt
from sluice.runtime.jobmanager.views import Failure
from sluice.runtime.messages import DriverExit, Evidence, ExecutorExcess, JobState

MAX_TASKMANAGERS_LOST = 3
"""How often a job restarts at once because its driver's TaskManager was lost; then its restart strategy decides."""

NOTHING_SEEN = Evidence()


class Conclusion:
    """Collects the records of an attempt whose driver has ended, judges it, and ends the job or hands it over.

    Args:
        streaming: takes the savepoint with which the job ends, if one was requested.
    """

    def __init__(  # noqa: PLR0917  # the parts of an attempt
        self,
        status: JobStatus,
        driver: DriverStatus,
        outbox: Outbox,
        pool: ExecutorPool,
        executors: ExecutorControl,
        streaming: StreamingControl,
    ) -> None:
        self._status = status
        self._driver = driver
        self._outbox = outbox
        self._pool = pool
        self._executors = executors
        self._streaming = streaming
        self._excesses: tuple[ExecutorExcess, ...] = ()

    def checkpoints_settled(self) -> None:
        """Continue after completed checkpoints were written, or given up."""
        if self._driver.phase is not Phase.SETTLING:
            return
        if (
            self._status.savepoints.stopping
            and self._status.state is JobState.RUNNING
            and self._driver.result is not None
        ):
            if self._streaming.pipeline_stopped:  # Sluice ended it, which is no failure
                self._driver.result = DriverExit(succeeded=True, exit_code=0)
            if self._driver.result.succeeded and self._streaming.take_savepoint():
                self._driver.phase = Phase.SAVING
                return
        self._collect()

    def records_collected(
        self, evidence: Evidence, excesses: Iterable[ExecutorExcess] = (), seen: Evidence = NOTHING_SEEN
    ) -> None:
        """Conclude the attempt with the evidence of its connections, as far as TaskManagers answered.

        Args:
            excesses: limits exceeded by the job's executors, those of earlier attempts included.
            seen: the part of the evidence that this process, not the job, recorded.
        """
        if self._driver.phase is not Phase.COLLECTING:
            return
        self._status.evidence, self._status.seen = evidence, seen
        self._excesses = tuple(excesses)
        self._conclude()

    def records_lost(self) -> None:
        """Conclude the attempt without its last records, which could not be collected."""
        if self._driver.phase in CONCLUDING:
            self._conclude()

    def restart_decided(self, delay: float | None) -> None:
        """Start the next attempt after ``delay`` seconds; None: end the job."""
        if self._driver.phase is not Phase.DECIDING:
            return
        if self._status.state is JobState.CANCELLING:  # cancelled meanwhile
            self._end((JobState.CANCELED,))
        elif delay is None:
            self._end((JobState.FAILED,))
        else:
            self._driver.phase = Phase.OVER
            self._status.enter(JobState.RESTARTING)
            error = self._status.failure.error if self._status.failure is not None else "it failed"
            self._status.pending_reason = (
                f"attempt {self._status.number} failed, the next one starts after {round(delay, 1):g} s: {error}"
            )
            self._outbox.add(ScheduleNextAttempt(self._status.record(), delay))

    def savepoint_over(self) -> None:
        """Continue after the savepoint with which the job ends is complete, or failed."""
        if self._driver.phase is Phase.SAVING:
            self._collect()

    def _collect(self) -> None:
        self._driver.phase = Phase.COLLECTING
        self._outbox.add(CollectRecords())

    def _conclude(self) -> None:
        """Judge the attempt: end the job, or ask whether to restart it."""
        self._status.savepoints.fail(f"the attempt ended: {self._driver.process_end}")
        verdict = self._judge()
        if verdict.error and self._status.failure is None:
            error = self._pool.explained(verdict.error, self._excesses)
            self._status.failure = Failure(error=error, traceback=verdict.traceback)
        self._executors.end()
        if not verdict.failed:
            self._end(verdict.path)
            return
        failure = self._status.failure or Failure(error=self._driver.process_end)
        self._status.history.note(self._status.now_ms, failure.error, failure.traceback, ended_attempt=True)
        outcome = LOST if self._driver.lost else JobState.FAILED.value
        self._status.history.end(outcome, self._status.now_ms, failure.error)
        self._status.keep_history()  # durable before the decision about a restart
        for state in verdict.path[:-1]:
            self._status.enter(state)
        self._driver.phase = Phase.DECIDING
        if self._driver.restart_useless:
            self.restart_decided(None)
        elif self._driver.lost and self._status.history.taskmanagers_lost <= MAX_TASKMANAGERS_LOST:
            self.restart_decided(0.0)  # not the job's failure: its restart strategy does not count it
        else:
            self._outbox.add(AskForRestart())

    def _judge(self) -> Verdict:
        verdict = judge_attempt(self._status.state, self._driver.result, self._driver.process_end)
        if (
            verdict.path == (JobState.FINISHED,)
            and self._status.savepoints.asked_to_stop
            and not self._status.savepoints.stopped
        ):
            error = f"the savepoint failed: {self._status.savepoints.requests[-1].error}"
            return Verdict((JobState.FAILING, JobState.FAILED), error)
        return verdict

    def _end(self, path: Iterable[JobState]) -> None:
        for state in path:
            self._status.enter(state)
        self._driver.phase = Phase.OVER
        failure = self._status.failure if self._status.state is JobState.FAILED else None
        self._status.history.end(self._status.state.value, self._status.now_ms, failure.error if failure else "")
        self._outbox.add(EndJob(self._status.record()))
