"""Views of jobs without a JobMaster: just accepted, interrupted, or ended under an earlier leader."""

from __future__ import annotations

import msgspec

from sluice.runtime.jobmanager.attempt import MAX_EXECUTORS_KEPT, ExecutorState, HistoryLog
from sluice.runtime.jobmanager.store import AcceptedJob, EndedJob, JobHistory
from sluice.runtime.jobmanager.views import ExecutorView, Failure, JobDetail, JobRecord
from sluice.runtime.messages import BlobRef, JobProgress, JobState, JobSubmission

_LOST = BlobRef(sha256="0" * 64, name="lost", size=0)
RECOVERY_REASON = "its JobManager was lost; it starts again as soon as nothing of it runs any more"


def accepted_detail(job_id: str, submission: JobSubmission, now_ms: int) -> JobDetail:
    """The view of a job that was just accepted."""
    detail = _detail(job_id, submission.name, submission.owner, JobState.INITIALIZING, now_ms, attempt=1)
    return _submitted(detail, submission)


def interrupted_record(job: AcceptedJob, history: JobHistory) -> JobRecord:
    """The record of a job that an earlier leader did not finish, with the history that it stored."""
    attempt = job.attempt.number if job.attempt is not None else 1
    reason = RECOVERY_REASON if job.attempt is not None else ""
    log = HistoryLog(history.attempts, history.exceptions)
    if job.attempt is not None:
        log.lost(attempt, job.accepted_at, "its JobManager was lost or stopped")
    detail = _detail(
        job.job_id, job.name, job.owner, JobState.RECONCILING, job.accepted_at, attempt=attempt, reason=reason
    )
    submission = job.submission or _unknown(job.name, job.owner)
    return JobRecord(
        submission=submission,
        detail=msgspec.structs.replace(
            _submitted(detail, submission),
            attempts=log.attempts,
            executors=tuple(_gone(each) for each in history.executors[-MAX_EXECUTORS_KEPT:]),
        ),
        exceptions=log.exceptions,
        processes=history.processes,
        processes_dropped=history.processes_dropped,
    )


def resumed_record(job: AcceptedJob, history: JobHistory) -> JobRecord:
    """The record of such a job whose driver may run, with attempt and executors as the earlier leader last saw them."""
    record = interrupted_record(job, history)
    detail = msgspec.structs.replace(record.detail, attempts=history.attempts, executors=history.executors)
    return msgspec.structs.replace(record, detail=detail, exceptions=history.exceptions)


def _gone(executor: ExecutorView) -> ExecutorView:
    """Mark an executor as lost: none outlives the leader of its job."""
    if executor.state == ExecutorState.EXITED:
        return executor
    return msgspec.structs.replace(executor, state=ExecutorState.EXITED, exit_reason="its JobManager was lost")


def ended_record(job: EndedJob) -> JobRecord:
    """The record of an ended job; if it is lost, what the pointer to it says."""
    if job.record is not None:
        return job.record
    each = job.summary
    detail = JobDetail(
        id=each.id,
        name=each.name,
        owner=each.owner,
        state=each.state,
        start_time=each.start_time,
        end_time=each.end_time,
        duration_ms=each.duration_ms,
        attempt=1,
        progress=JobProgress(),
        executors=(),
        timestamps={},
        failure=Failure(error="the details of this job are lost: its entry in the HA storage is damaged"),
        pending_reason="",
        kind=each.kind,
    )
    return JobRecord(submission=_unknown(each.name, each.owner), detail=detail)


def _submitted(detail: JobDetail, submission: JobSubmission) -> JobDetail:
    return msgspec.structs.replace(
        detail, kind=submission.kind, owner_roles=submission.owner_roles, owner_groups=submission.owner_groups
    )


def _unknown(name: str, owner: str) -> JobSubmission:
    return JobSubmission(name=name, owner=owner, pipeline=_LOST)


def _detail(
    job_id: str, name: str, owner: str, state: JobState, start: int, *, attempt: int, reason: str = ""
) -> JobDetail:
    return JobDetail(
        id=job_id,
        name=name,
        owner=owner,
        state=state,
        start_time=start,
        end_time=None,
        duration_ms=0,
        attempt=attempt,
        progress=JobProgress(),
        executors=(),
        timestamps={JobState.INITIALIZING.value: start},
        failure=None,
        pending_reason=reason,
    )
