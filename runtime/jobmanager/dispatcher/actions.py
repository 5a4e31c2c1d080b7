"""The actions that the Dispatcher's state machine decides: plain values, which the Dispatcher carries out in order."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.runtime.messages import JobState


@dataclass(frozen=True, slots=True)
class Accept:
    """Make a submission durable; the event ``accepted`` or ``dropped`` follows."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Fetch the files of an earlier leader's job; then ``ready``."""

    job_id: str


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Record that another attempt begins; then ``attempt_begun``."""

    job_id: str


@dataclass(frozen=True, slots=True)
class StartMaster:
    """Start the JobMaster of an attempt; then ``master_started``.

    ``resumed``: the attempt has begun under an earlier leader, and its driver may run.
    """

    job_id: str
    attempt: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class CancelMaster:
    """Tell a JobMaster that its job is cancelled."""

    job_id: str


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Stop the JobMaster and the rest of its attempt, and record that it is over; then ``attempt_over``."""

    job_id: str


@dataclass(frozen=True, slots=True)
class StartDelay:
    """Report ``delay_over`` after so many seconds."""

    job_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Conclude:
    """Record the result of a job that has no JobMaster; then ``ended``. ``error`` says why it failed."""

    job_id: str
    state: JobState
    error: str = ""


@dataclass(frozen=True, slots=True)
class RemoveMaster:
    """Stop the JobMaster of a job that has ended and clean up after it; then ``cleaned``."""

    job_id: str


@dataclass(frozen=True, slots=True)
class CleanUp:
    """For a job without a JobMaster: give back what that would give back, and clean up; then ``cleaned``."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the result and the logs of a job."""

    job_id: str


Action = (
    Accept
    | Recover
    | BeginAttempt
    | StartMaster
    | CancelMaster
    | EndAttempt
    | StartDelay
    | Conclude
    | RemoveMaster
    | CleanUp
    | Forget
)
