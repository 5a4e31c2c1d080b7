"""The lifecycle of a job: Flink's job states and the transitions between them. No I/O; the time is a parameter.

Source: Flink documentation, "Jobs and Scheduling", and ``org.apache.flink.api.common.JobStatus``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.jobmanager.errors import IllegalTransition
from sluice.runtime.messages import DriverExit, JobState

_S = JobState

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _S.INITIALIZING: frozenset({_S.CREATED, _S.FAILING, _S.FAILED, _S.CANCELLING, _S.SUSPENDED, _S.RECONCILING}),
    _S.RECONCILING: frozenset({_S.CREATED, _S.RUNNING, _S.RESTARTING, _S.FAILING, _S.CANCELLING, _S.SUSPENDED}),
    _S.CREATED: frozenset({_S.RUNNING, _S.FAILING, _S.CANCELLING, _S.SUSPENDED}),
    _S.RUNNING: frozenset({_S.FINISHED, _S.FAILING, _S.CANCELLING, _S.SUSPENDED}),
    _S.FAILING: frozenset({_S.FAILED, _S.RESTARTING, _S.CANCELLING, _S.SUSPENDED}),
    _S.RESTARTING: frozenset({_S.CREATED, _S.FAILING, _S.CANCELLING, _S.SUSPENDED}),
    _S.CANCELLING: frozenset({_S.CANCELED, _S.SUSPENDED}),
    _S.SUSPENDED: frozenset({_S.RECONCILING, _S.FAILED}),
    _S.FAILED: frozenset(),
    _S.CANCELED: frozenset(),
    _S.FINISHED: frozenset(),
}
"""The states that a job may enter from each state. A JobManager that stops leaves its jobs in SUSPENDED."""

ENDING = frozenset({_S.FAILING, _S.CANCELLING})
"""States in which the driver is being ended."""


@dataclass
class JobLifecycle:
    """The state of one job, and the time (epoch milliseconds) at which it last entered each state."""

    state: JobState
    timestamps: dict[JobState, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, now_ms: int) -> JobLifecycle:
        """The lifecycle of a job that was just accepted."""
        return cls(_S.INITIALIZING, {_S.INITIALIZING: now_ms})

    @classmethod
    def resume(cls, state: JobState, timestamps: Mapping[str, int]) -> JobLifecycle:
        """The lifecycle of a job whose earlier attempts left it in ``state``."""
        return cls(state, {_S(name): at for name, at in timestamps.items()})

    def transition_to(self, state: JobState, now_ms: int) -> None:
        """Enter ``state``; raises :class:`IllegalTransition` when the job cannot."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"a job cannot go from {self.state} to {state}")
        self.state = state
        self.timestamps.pop(state, None)  # keep the order of the last entries
        self.timestamps[state] = now_ms

    def can_transition_to(self, state: JobState) -> bool:
        """Whether the job can go to ``state`` from here."""
        return state in TRANSITIONS[self.state]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended: the states to pass through, and the error if it failed."""

    path: tuple[JobState, ...]
    error: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        """Whether the attempt failed. The restart strategy then decides whether the job becomes FAILED."""
        return self.path[-1] is _S.FAILED


def judge_attempt(state: JobState, result: DriverExit | None, process_end: str) -> Verdict:
    """Decide how an attempt ended, from the end of its driver process.

    Args:
        state: the state of the job when the process ended.
        result: the result that the driver reported; None when it reported none.
        process_end: how the process ended, as text.

    An exit code alone proves nothing (a driver that fenced itself may exit with 0), so a driver without a report counts
    as a failure. A cancelled job is CANCELED whatever its driver reported.
    """
    if state is _S.CANCELLING:
        return Verdict((_S.CANCELED,))
    if state is _S.FAILING:
        return Verdict((_S.FAILED,), result.error if result else "", result.traceback if result else "")
    if result is None:
        return Verdict((_S.FAILING, _S.FAILED), f"the driver ended without reporting its result: {process_end}")
    if not result.succeeded:
        error = result.error or f"the pipeline ended with exit code {result.exit_code}"
        return Verdict((_S.FAILING, _S.FAILED), error, result.traceback)
    if state is not _S.RUNNING:
        return Verdict((_S.FAILING, _S.FAILED), f"the driver reported success of a job that was {state}")
    return Verdict((_S.FINISHED,))
