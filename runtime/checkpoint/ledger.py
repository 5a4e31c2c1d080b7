"""Counts the completed checkpoints of a streaming job from its driver's reports. Decisions only; no I/O.

A checkpoint of a job is the set of the last committed batches of its queries. Each committed batch completes a
checkpoint, so the checkpoint number rises by one per batch, across all attempts of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from sluice.runtime.messages import Message, StreamingQuery, StreamingState

HISTORY = 20
"""Number of latest checkpoints that are shown."""
MAX_QUERIES = 1_000
"""Most queries of a checkpoint. Of more, the oldest ones that the driver no longer reports are left out."""


class QueryCheckpoint(Message, frozen=True):
    """The last committed batch of one query. ``name`` is its folder in the job's checkpoint directory."""

    query_id: str
    name: str
    batch: int


class Checkpoint(Message, frozen=True):
    """A completed checkpoint; ``completed_at`` in epoch milliseconds."""

    number: int
    attempt: int
    completed_at: int
    queries: tuple[QueryCheckpoint, ...]


class CheckpointsView(Message, frozen=True):
    """A job's checkpoints: their number, the one that this attempt resumed from, and the latest ones."""

    completed: int = 0
    restored: Checkpoint | None = None
    history: tuple[Checkpoint, ...] = ()
    queries: tuple[StreamingQuery, ...] = ()

    @property
    def latest(self) -> Checkpoint | None:
        """The last completed checkpoint; None if there is none yet."""
        return self.history[-1] if self.history else self.restored


@dataclass
class CheckpointLedger:
    """The completed checkpoints of one job.


    Attributes:
        attempt: the number of the reporting attempt.
        restored: the last checkpoint of earlier attempts.
        problem: why the job must not continue; empty if it may.
    """

    attempt: int
    restored: Checkpoint | None = None
    problem: str = ""
    _history: tuple[Checkpoint, ...] = ()
    _queries: tuple[StreamingQuery, ...] = ()
    _unnamed: set[str] = field(default_factory=set)

    @property
    def view(self) -> CheckpointsView:
        """The checkpoints for REST and the dashboard."""
        latest = self._history[-1] if self._history else self.restored
        return CheckpointsView(
            completed=latest.number if latest is not None else 0,
            restored=self.restored,
            history=self._history,
            queries=self._queries,
        )

    def update(self, state: StreamingState, now: int) -> Checkpoint | None:
        """Apply a driver's report; return the checkpoint that was completed since the last one, or None."""
        self._queries = state.queries
        before = self.view.latest
        known = {each.name: each for each in before.queries} if before is not None else {}
        committed, batches = dict(known), 0
        for query in state.queries:
            if not query.name or query.batch < 0:
                continue
            last = known.get(query.name)
            if last is not None and (query.batch < last.batch or query.id != last.query_id):
                self._begun_anew(query, last)
                return None
            if last is None or query.batch > last.batch:
                batches += query.batch - last.batch if last is not None else 1
                committed[query.name] = QueryCheckpoint(query_id=query.id, name=query.name, batch=query.batch)
        if not batches:
            return None
        reported = {query.name for query in state.queries}
        ended = [name for name in committed if name not in reported]
        for name in ended[: max(0, len(committed) - MAX_QUERIES)]:
            del committed[name]
        checkpoint = Checkpoint(
            number=(before.number if before is not None else 0) + batches,
            attempt=self.attempt,
            completed_at=now,
            queries=tuple(committed.values()),
        )
        self._history = (*self._history, checkpoint)[-HISTORY:]
        return checkpoint

    def unnamed(self) -> list[str]:
        """Ids of queries without a name, each returned once. No later attempt can find their checkpoints."""
        new = [each.id for each in self._queries if not each.name and each.id not in self._unnamed]
        new = new[: MAX_QUERIES - len(self._unnamed)]
        self._unnamed.update(new)
        return new

    def _begun_anew(self, query: StreamingQuery, last: QueryCheckpoint) -> None:
        self.problem = (
            f"query {query.name} is at batch {query.batch} although batch {last.batch} was committed: its checkpoint "
            f"is lost or belongs to another query, and its output would be written twice"
        )


def missing_batches(checkpoint: Checkpoint, committed: dict[str, int]) -> str:
    """Why a job cannot resume from ``checkpoint``; empty if it can. ``committed`` maps query names to last batches."""
    for each in checkpoint.queries:
        found = committed.get(each.name, -1)
        if found < each.batch:
            there = f"only batch {found} is there" if found >= 0 else "nothing of it is there"
            return (
                f"batch {each.batch} of query {each.name} was committed, and {there}: the checkpoint directory is lost"
            )
    return ""


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint for the HA storage."""
    return msgspec.json.encode(checkpoint)


def decode(data: bytes) -> Checkpoint:
    """Decode the result of :func:`encode`; raises ``msgspec.DecodeError``."""
    return msgspec.json.decode(data, type=Checkpoint)
