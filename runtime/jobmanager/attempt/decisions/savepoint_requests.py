"""The savepoint requests of one job, at most one at a time, and their outcomes. Decisions only; no I/O."""

from __future__ import annotations

import msgspec

from sluice.runtime.checkpoint import CheckpointsView, NotStreaming, Savepoint, SavepointFailed
from sluice.runtime.jobmanager.views import SavepointRequest, SavepointState
from sluice.runtime.messages import JobState

MAX_REQUESTS = 20
"""Most requests that are kept, the latest ones."""


class SavepointRequests:
    """The requests of one job, the latest last. Times are in epoch milliseconds.

    Args:
        requests: the requests of earlier attempts.
    """

    def __init__(self, requests: tuple[SavepointRequest, ...] = ()) -> None:
        self.requests = requests
        self.fail("its attempt ended")
        self.asked_to_stop = False

    @property
    def current(self) -> SavepointRequest | None:
        """The request in progress; None when there is none."""
        last = self.requests[-1] if self.requests else None
        return last if last is not None and last.state is SavepointState.IN_PROGRESS else None

    @property
    def stopped(self) -> bool:
        """Whether the savepoint with which this attempt ends is complete."""
        return self.asked_to_stop and self.requests[-1].state is SavepointState.COMPLETED

    @property
    def stopping(self) -> bool:
        """Whether the job ends with the savepoint in progress."""
        return self.current is not None and self.current.stop

    def add(self, savepoint_id: str, state: JobState, checkpoints: CheckpointsView, now: int, *, stop: bool) -> None:
        """Begin a savepoint.

        Raises:
            SavepointFailed: the job does not run, has no checkpoint yet, or another savepoint is in progress.
            NotStreaming: no streaming query with a name runs.
        """
        if state is not JobState.RUNNING:
            raise SavepointFailed(f"the job is {state}", "savepoints are taken of running jobs")
        if not any(query.name and query.state == "RUNNING" for query in checkpoints.queries):
            raise NotStreaming(
                "no streaming query with a name runs in this job",
                "batch jobs have no savepoints; name a query with queryName()",
            )
        if checkpoints.latest is None:
            raise SavepointFailed("no batch was committed yet", "try again after the first batch")
        if self.asked_to_stop:
            raise SavepointFailed("the job is being stopped with a savepoint", "wait for its end")
        if self.current is not None:
            raise SavepointFailed(f"{self.current.id} is being taken already", "wait for it")
        request = SavepointRequest(id=savepoint_id, requested_at=now, stop=stop)
        self.requests = (*self.requests, request)[-MAX_REQUESTS:]
        self.asked_to_stop = self.asked_to_stop or stop

    def complete(self, savepoint: Savepoint) -> None:
        """Note that the savepoint in progress is complete."""
        self._settle(SavepointState.COMPLETED, path=savepoint.path)

    def fail(self, error: str) -> None:
        """Note that the savepoint in progress failed; does nothing when there is none."""
        self._settle(SavepointState.FAILED, error=error)

    def _settle(self, state: SavepointState, **what: str) -> None:
        if self.current is not None:
            settled = msgspec.structs.replace(self.current, state=state, **what)
            self.requests = (*self.requests[:-1], settled)
