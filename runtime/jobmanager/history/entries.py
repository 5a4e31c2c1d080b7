"""Which jobs are in the history, by the names of their entries, and which of them have to go. Decisions only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.runtime.config import HistoryConfig

MAX_ARCHIVED_JOBS = 20_000
"""Jobs in the history, whatever its settings say: all their names are in memory."""
DAY_MS = 86_400_000

_NAME = re.compile(
    r"(?P<ended_at>[0-9]{14})\.(?P<job_id>[0-9a-f]{32})\.(?P<folder>[0-9a-f]{16})\.(?P<digest>[0-9a-f]{32})\."
    r"(?P<size>[0-9]{1,15})\.json"
)


@dataclass(frozen=True, slots=True, order=True)
class ArchivedJob:
    """A job in the history, as the name of its entry says it; the earliest first.

    Attributes:
        ended_at: epoch milliseconds.
        folder: where its files are.
        digest: of the entry's content: the first half of its SHA-256.
        size: of entry and files together, in bytes.
    """

    ended_at: int
    job_id: str
    folder: str
    digest: str
    size: int

    @classmethod
    def parse(cls, name: str) -> ArchivedJob | None:
        """The job that an entry of this name is about; None: it is no such name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        return cls(int(match["ended_at"]), match["job_id"], match["folder"], match["digest"], int(match["size"]))

    @property
    def name(self) -> str:
        """The name of its entry."""
        return f"{self.ended_at:014d}.{self.job_id}.{self.folder}.{self.digest}.{self.size}.json"


def superfluous(jobs: Iterable[ArchivedJob], settings: HistoryConfig, now_ms: int) -> list[ArchivedJob]:
    """Those that are too old, then the oldest ones until the rest fits."""
    ordered = sorted(jobs)
    size, count = sum(job.size for job in ordered), len(ordered)
    gone = []
    for job in ordered:
        fits = size <= settings.max_bytes and count <= MAX_ARCHIVED_JOBS
        if fits and now_ms - job.ended_at <= settings.days * DAY_MS:
            break
        gone.append(job)
        size, count = size - job.size, count - 1
    return gone
