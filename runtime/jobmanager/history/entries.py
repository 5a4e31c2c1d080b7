"""The names of index entries in the history, and the decision which jobs to remove. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.runtime.config import HistoryConfig

MAX_ARCHIVED_JOBS = 20_000
"""Most jobs in the history, whatever the settings say: all their names are in memory."""
DAY_MS = 86_400_000

_NAME = re.compile(
    r"(?P<ended_at>[0-9]{14})\.(?P<job_id>[0-9a-f]{32})\.(?P<owner>[0-9a-f]{8})\.(?P<folder>[0-9a-f]{16})\.(?P<digest>[0-9a-f]{32})\."
    r"(?P<size>[0-9]{1,15})\.json"
)


@dataclass(frozen=True, slots=True, order=True)
class ArchivedJob:
    """A job in the history, parsed from the name of its index entry. Sorts by end time, the earliest first.

    Attributes:
        ended_at: in epoch milliseconds.
        owner: the mark of the owner, see :func:`owner_mark`.
        folder: the folder of the files.
        digest: the first half of the SHA-256 of the entry's content, in hexadecimal.
        size: the size of the entry and the files together, in bytes.
    """

    ended_at: int
    job_id: str
    owner: str
    folder: str
    digest: str
    size: int

    @classmethod
    def parse(cls, name: str) -> ArchivedJob | None:
        """Parse the name of an index entry; None when it has another format."""
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
        """The name of the index entry."""
        return f"{self.ended_at:014d}.{self.job_id}.{self.owner}.{self.folder}.{self.digest}.{self.size}.json"


def owner_mark(owner: str) -> str:
    """The mark of an owner in names of entries. Owners whose marks collide share their space."""
    return hashlib.sha256(owner.encode(errors="replace")).hexdigest()[:8]


def jobs_to_remove(jobs: Iterable[ArchivedJob], settings: HistoryConfig, now_ms: int) -> list[ArchivedJob]:
    """The jobs to remove: expired ones, then the oldest job of the owner who uses most, until the rest fits.

    So no owner can push the jobs of others out of the history with many or large jobs.
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
