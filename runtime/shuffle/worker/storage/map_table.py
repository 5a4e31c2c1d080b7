"""The map attempts of one shuffle on one worker, and their states. Decisions only: no I/O, no locks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from sluice.runtime.shuffle.data_plane import FrameRefused, MapUnknown
from sluice.runtime.shuffle.worker.storage.attempts import MapAttempt
from sluice.runtime.shuffle.worker.storage.budget import MAP_BYTES, Holding
from sluice.runtime.shuffle.worker.storage.volume import Committed

_LOG = logging.getLogger(__name__)

MAX_MAPS = 1 << 20
"""Maximum map attempts of one shuffle on one worker."""


class MapTable:
    """The map attempts of a shuffle. An attempt is open until it is committed or fails, and accepts no data afterwards.

    Not thread-safe: the shuffle's lock guards it.

    Args:
        name: the name of the shuffle, for messages.
        holding: charged for each attempt.
    """

    def __init__(self, name: str, holding: Holding) -> None:
        self._name = name
        self._holding = holding
        self._maps: dict[int, MapAttempt] = {}
        self._released = False

    def __contains__(self, map_id: int) -> bool:
        return map_id in self._maps

    def __getitem__(self, map_id: int) -> MapAttempt:
        return self._maps[map_id]

    def opened(self, map_id: int) -> MapAttempt:
        """Return the open attempt ``map_id``; the first call creates it.

        Raises:
            MapUnknown: the attempt is committed or has failed, or the shuffle was released.
            FrameRefused: the shuffle has too many attempts.
            QuotaExceeded: there is no room for one more.
        """
        if self._released:
            raise MapUnknown(f"shuffle {self._name} was released", map_id=map_id)
        attempt = self._maps.get(map_id)
        if attempt is None:
            if len(self._maps) >= MAX_MAPS:
                raise FrameRefused(f"shuffle {self._name} has {MAX_MAPS} map attempts here already")
            self._holding.take(MAP_BYTES)
            attempt = self._maps[map_id] = MapAttempt()
        if attempt.committed or attempt.aborted:
            state = "committed" if attempt.committed else "aborted"
            raise MapUnknown(f"map {map_id} was {state} and accepts no more data", map_id=map_id)
        return attempt

    def take(self, map_id: int, sequences: list[int], size: int) -> None:
        """Record that segments of an open attempt arrived; raises as :meth:`opened` and :meth:`MapAttempt.take` do."""
        attempt = self.opened(map_id)
        early = attempt.early_bytes
        attempt.take(sequences, size, map_id)
        if attempt.early_bytes != early:
            self._holding.charge(attempt.early_bytes - early)

    def complete(self, map_id: int, segments: int, size: int) -> MapAttempt | None:
        """Return the open attempt if it has exactly these segments; None if it was committed with them before.

        Raises:
            MapUnknown: the attempt is unknown, has failed, or has other contents.
        """
        attempt = self._maps.get(map_id)
        if attempt is None and segments == 0:
            attempt = self.opened(map_id)
        if attempt is None or attempt.aborted:
            raise MapUnknown(f"map {map_id} is not known here", "push it again", map_id=map_id)
        if attempt.committed:
            if (attempt.segments, attempt.size) != (segments, size):
                raise MapUnknown(f"map {map_id} was committed with other contents", map_id=map_id)
            return None
        if not attempt.complete(segments, size):
            raise MapUnknown(
                f"map {map_id} has {attempt.segments} segments with {attempt.size} bytes here, "
                f"its commit names {segments} with {size}",
                "push it again",
                map_id=map_id,
            )
        return attempt

    def end(self, attempt: MapAttempt, *, committed: bool) -> None:
        """Close an attempt as committed or failed."""
        self._holding.charge(-attempt.early_bytes)
        attempt.over(committed=committed)

    def fail(self, maps: Iterable[int]) -> None:
        """Mark these attempts as failed."""
        for map_id in maps:
            self.end(self._maps[map_id], committed=False)

    def abort(self, map_id: int) -> bool:
        """Mark an attempt as failed unless it was committed; returns whether it is known and was not committed."""
        attempt = self._maps.get(map_id)
        if attempt is None or attempt.committed:
            return False
        self.end(attempt, committed=False)
        return True

    def fail_all(self) -> None:
        """Mark all attempts as failed."""
        self.fail(self._maps)

    def forget(self, maps: Collection[int]) -> None:
        """Forget committed attempts that will not be read any more."""
        for map_id in maps:
            del self._maps[map_id]
        self._holding.charge(-MAP_BYTES * len(maps))

    def has_any(self, maps: Iterable[int]) -> bool:
        """Whether any of ``maps`` is known."""
        return any(map_id in self._maps for map_id in maps)

    def check_committed(self, maps: Iterable[int]) -> None:
        """Raise :class:`MapUnknown` for the first of ``maps`` that is not committed."""
        for map_id in maps:
            attempt = self._maps.get(map_id)
            if attempt is None or not attempt.committed:
                raise MapUnknown(f"map {map_id} is not committed here", map_id=map_id)

    def committed(self) -> list[Committed]:
        """Return all committed attempts."""
        return [Committed(map_id, each.segments, each.size) for map_id, each in self._maps.items() if each.committed]

    def open_count(self) -> int:
        """Return the number of open attempts."""
        return sum(not (each.committed or each.aborted) for each in self._maps.values())

    def recovered(self, entry: Committed) -> None:
        """Record an attempt that an earlier process committed."""
        attempt = self._maps.get(entry.map_id)
        if attempt is None:
            attempt = self._maps[entry.map_id] = MapAttempt()
            self._holding.charge(MAP_BYTES)
        attempt.segments, attempt.size, attempt.committed = entry.segments, entry.size, True

    def finish_recovery(self, found: Mapping[int, int]) -> int:
        """Finish the recovery: mark attempts as failed if not all of their segments were found.

        ``found`` has the number of segments of each map that were found. Returns the number of committed attempts.
        """
        for map_id, attempt in self._maps.items():
            if found.get(map_id, 0) != attempt.segments:
                _LOG.warning("%s: map %d was committed, but some of its segments are missing", self._name, map_id)
                self.end(attempt, committed=False)
        for map_id in found.keys() - self._maps.keys():
            self._maps[map_id] = MapAttempt(aborted=True)
            self._holding.charge(MAP_BYTES)
        return sum(attempt.committed for attempt in self._maps.values())

    def release(self) -> None:
        """Forget all attempts, and accept no new ones."""
        self._released = True
        self._maps = {}
