"""Which jobs are in the history, by the names of their entries, and which of them have to go. Decisions only."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.runtime.config import HistoryConfig

MAX_ARCHIVED_JOBS = 20_000
"""Jobs in the history, whatever its settings say: all their names are in memory."""
DAY_MS = 86_400_000

_NAME = re.compile(
    r"(?P<ended_at>[0-9]{14})\.(?P<job_id>[0-9a-f]{32})\.(?P<owner>[0-9a-f]{8})\.(?P<folder>[0-9a-f]{16})\.(?P<digest>[0-9a-f]{32})\."
    r"(?P<size>[0-9]{1,15})\.json"
)


@dataclass(frozen=True, slots=True, order=True)
class ArchivedJob:
    """A job in the history, as the name of its entry says it; the earliest first.

    Attributes:
        ended_at: epoch milliseconds.
        owner: of whom it is, see :func:`owner_mark`.
        folder: where its files are.
        digest: of the entry's content: the first half of its SHA-256.
        size: of entry and files together, in bytes.
    """

    ended_at: int
    job_id: str
    owner: str
    folder: str
    digest: str
    size: int

    @classmethod
    def parse(cls, name: str) -> ArchivedJob | None:
        """The job that an entry of this name is about; None: it is no such name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        return cls(
            ended_at=int(match["ended_at"]),
            job_id=match["job_id"],
            owner=match["owner"],
            folder=match["folder"],
            digest=match["digest"],
            size=int(match["size"]),
        )

    @property
    def name(self) -> str:
        """The name of its entry."""
        return f"{self.ended_at:014d}.{self.job_id}.{self.owner}.{self.folder}.{self.digest}.{self.size}.json"


def owner_mark(owner: str) -> str:
    """What stands for an owner in names; two who have the same by chance share their room."""
    return hashlib.sha256(owner.encode(errors="replace")).hexdigest()[:8]


def superfluous(jobs: Iterable[ArchivedJob], settings: HistoryConfig, now_ms: int) -> list[ArchivedJob]:
    """Those that are too old; then, until the rest fits, the oldest one of whoever takes the most room.

    So nobody can drive the jobs of others out of the history by many or large ones.
    """
    gone: list[ArchivedJob] = []
    stay: dict[str, deque[ArchivedJob]] = defaultdict(deque)
    for job in sorted(jobs):
        if now_ms - job.ended_at > settings.days * DAY_MS:
            gone.append(job)
        else:
            stay[job.owner].append(job)
    sizes = {owner: sum(job.size for job in of_owner) for owner, of_owner in stay.items()}
    size, count = sum(sizes.values()), sum(map(len, stay.values()))
    while count and (size > settings.max_bytes or count > MAX_ARCHIVED_JOBS):
        if size > settings.max_bytes:
            most = max(stay, key=lambda owner: (sizes[owner], owner))
        else:
            most = max(stay, key=lambda owner: (len(stay[owner]), owner))
        job = stay[most].popleft()
        gone.append(job)
        sizes[most] -= job.size
        size, count = size - job.size, count - 1
        if not stay[most]:
            del stay[most]
    return gone
