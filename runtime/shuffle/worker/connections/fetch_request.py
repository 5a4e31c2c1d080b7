"""A fetch request on a connection, and the progress of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sluice.runtime.shuffle.data_plane import Header, SegmentChecks
from sluice.runtime.shuffle.worker.storage import Holding, Located, ShuffleData, unlimited


@dataclass(slots=True)
class Fetch:
    """A fetch request in progress.

    Attributes:
        plan: what is left to send, located part by part. After an error because of missing room, it can be asked again.
        window: the current part of the plan.
        row: the next segment of ``window`` to send.
        holding: what the memory of the request is charged to.
    """

    header: Header
    data: ShuffleData
    checks: SegmentChecks
    plan: Iterator[Located]
    credit: int
    started: float
    window: Located | None = None
    row: int = 0
    segments: int = 0
    size: int = 0
    holding: Holding = field(default_factory=unlimited)

    @property
    def ready(self) -> bool:
        """Whether it has credit and located segments to send."""
        return self.credit > 0 and self.window is not None

    def read(self, window: Located, row: int, end: int, view: memoryview) -> bool:
        """Read segments of :attr:`window` into ``view``; False if they moved, and :attr:`window` was located again."""
        self.data.read(window, row, end, view)
        return True

    def advance(self) -> bool:
        """Make sure that :attr:`window` has a next row; returns False at the end.

        Raises:
            QuotaExceeded: there is no room for the next part; :attr:`window` is None then.
        """
        while self.window is None or self.row >= len(self.window):
            self.window, self.row = None, 0
            self.window = next(self.plan, None)
            if self.window is None:
                return False
        return True

    def grant(self, size: int, _maps: int) -> None:
        """Grant the request credit for ``size`` more bytes."""
        self.credit += size

    def close(self) -> None:
        """Give back the memory of the request."""
        self.window, self.plan = None, iter(())
        self.holding.close()

    @property
    def place(self) -> tuple[int, int, int]:
        """The position of the next segment: the shuffle, the number of its volume, and the offset there."""
        if self.window is None or self.row >= len(self.window):
            return (0, 0, 0)
        return (self.header.shuffle, self.window.volumes[self.row], self.window.offsets[self.row])
