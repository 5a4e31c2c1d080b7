"""One request for data on a connection, and how far it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sluice.runtime.shuffle.data_plane import Header, SegmentChecks
from sluice.runtime.shuffle.worker.storage import Holding, Located, ShuffleData, unlimited


@dataclass(slots=True)
class Fetch:
    """One request being answered.

    Attributes:
        plan: what is left to send, found part by part; who was refused room may ask again.
        holding: what the request is charged to.
    """

    header: Header
    data: ShuffleData
    checks: SegmentChecks
    plan: Iterator[Located]
    credit: int
    started: float
    at: Located | None = None
    row: int = 0
    segments: int = 0
    size: int = 0
    holding: Holding = field(default_factory=unlimited)

    @property
    def ready(self) -> bool:
        """Whether there is something that it may be sent."""
        return self.credit > 0 and self.at is not None

    def read(self, at: Located, row: int, end: int, view: memoryview) -> bool:
        """Read segments of :attr:`at` into ``view``; False when they are elsewhere now: to be looked at anew."""
        self.data.read(at, row, end, view)
        return True

    def advance(self) -> bool:
        """Make sure that :attr:`at` has a next row; False at the end.

        Raises:
            QuotaExceeded: there is no room for what comes next; :attr:`at` is None then.
        """
        while self.at is None or self.row >= len(self.at):
            self.at, self.row = None, 0
            self.at = next(self.plan, None)
            if self.at is None:
                return False
        return True

    def grant(self, size: int, _maps: int) -> None:
        """The reader has room for so many more bytes."""
        self.credit += size

    def close(self) -> None:
        """Give back what it is charged to."""
        self.at, self.plan = None, iter(())
        self.holding.close()

    @property
    def place(self) -> tuple[int, int, int]:
        """Where the next segment is: which shuffle's files, which of them, and its offset there."""
        if self.at is None or self.row >= len(self.at):
            return (0, 0, 0)
        return (self.header.shuffle, self.at.volumes[self.row], self.at.offsets[self.row])
