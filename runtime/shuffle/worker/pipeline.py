"""Who may read a shuffle before it is complete, and what: decisions only, no I/O.

A map whose writer names its index is *announced*: the first attempt of an index that commits counts, no other ever
does, and readers that follow get it. The producer ends the shuffle, complete or given up; one that says nothing for too
long is taken for gone.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Collection

from runtime.shuffle.errors import (
    AttemptLost,
    AttemptSuperseded,
    MapUnknown,
    ProducerSilent,
    ShuffleError,
)
from runtime.shuffle.wire import MAX_MAPS_PER_BATCH, Share

Clock = Callable[[], float]


class Stage(enum.Enum):
    """How far a shuffle is."""

    OPEN = enum.auto()
    COMPLETE = enum.auto()
    OVER = enum.auto()
    """Nothing more can be read, for the reason that is known."""


class Pipeline:
    """The announced maps of one shuffle on one worker; safe for use by many threads."""

    def __init__(self, name: str, clock: Clock = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = Stage.OPEN
        self._reason: ShuffleError | None = None
        self._claimed: dict[int, int] = {}
        self._order: list[tuple[int, int]] = []
        self._committed: set[int] = set()
        self._lost: set[int] = set()
        self._listeners: set[Callable[[], None]] = set()
        self._heard = clock()

    # The producer's side

    def touch(self) -> None:
        """The producer gave a sign of life."""
        self._heard = self._clock()

    def claim(self, index: int, map_id: int) -> None:
        """Let an attempt be the one of its map; until :meth:`disclaim`, no other can be.

        Raises:
            AttemptSuperseded: another one is, or the shuffle is complete.
            ProducerAborted: nothing counts any more.
        """
        with self._lock:
            self._check_reason()
            if self._stage is Stage.OPEN and not (map_id in self._committed or map_id in self._lost):
                self._claimed.setdefault(index, map_id)
            if self._claimed.get(index) != map_id:
                raise AttemptSuperseded(
                    f"attempt {map_id} of map {index} of shuffle {self.name} is not the one that counts", map_id=map_id
                )

    def disclaim(self, index: int, map_id: int) -> None:
        """The attempt could not be committed."""
        with self._lock:
            if self._claimed.get(index) == map_id and map_id not in self._committed:
                del self._claimed[index]

    def commit(self, index: int, map_id: int) -> None:
        """What was claimed can be read from now on; again is harmless."""
        with self._lock:
            if map_id not in self._committed:
                self._committed.add(map_id)
                self._order.append((map_id, index))
                self._changed()

    def lose(self, maps: Collection[int]) -> None:
        """Committed attempts are gone: their maps can be written again, but not for readers that have had them."""
        with self._lock:
            self._lose(self._committed.intersection(maps))

    def complete(self, maps: Collection[int]) -> None:
        """No other attempts than these count, and all of these are here; again is harmless.

        Raises:
            MapUnknown: one is not here (who follows has to follow another worker then), or it is complete with others.
            ShuffleError: the shuffle is over.
        """
        with self._lock:
            self._check_reason()
            missing = set(maps) - self._committed
            if self._stage is Stage.COMPLETE and self._committed != set(maps):
                raise MapUnknown(f"shuffle {self.name} is complete with other maps")
            if missing:
                error = MapUnknown(
                    f"shuffle {self.name} has {len(missing)} of {len(maps)} maps not here", map_id=min(missing)
                )
                self._end(error)
                raise error
            self._lose(self._committed.difference(maps))
            self._stage = Stage.COMPLETE
            self._changed()

    def abort(self, reason: ShuffleError) -> None:
        """Who follows, and whoever comes to, gets ``reason``."""
        with self._lock:
            if self._reason is None:
                self._end(reason)

    def check_open(self) -> None:
        """Refuse what is written to a shuffle that is over."""
        if self._reason is not None:
            self._check_reason()

    # The readers' side

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, from whichever thread, when there is something new."""
        with self._lock:
            self._listeners.add(wake)

    def unlisten(self, wake: Callable[[], None]) -> None:
        """No longer."""
        with self._lock:
            self._listeners.discard(wake)

    def follow(self, share: Share, had: Collection[int], patience: float) -> Follower:
        """A reader of ``share`` that has the maps ``had`` already, and waits ``patience`` seconds for a producer."""
        return Follower(self, share, set(had), patience, self._clock)

    def news(self, after: int) -> tuple[list[tuple[int, int]], int, bool, set[int]]:
        """What was committed after the first so many, how many that are, whether no more come, and what was lost.

        Raises:
            ShuffleError: why nothing can be read any more.
        """
        with self._lock:
            self._check_reason()
            until = min(len(self._order), after + MAX_MAPS_PER_BATCH)
            complete = self._stage is Stage.COMPLETE and until == len(self._order)
            return self._order[after:until], until, complete, set(self._lost)

    def has_all(self, maps: Collection[int]) -> bool:
        """Whether all of ``maps`` count here."""
        with self._lock:
            return self._committed.issuperset(maps)

    @property
    def heard(self) -> float:
        """When the producer gave its last sign of life, on the clock."""
        return self._heard

    def _lose(self, maps: set[int]) -> None:
        if not maps:
            return
        self._lost |= maps
        self._committed -= maps
        self._claimed = {index: each for index, each in self._claimed.items() if each not in maps}
        self._changed()

    def _end(self, reason: ShuffleError) -> None:
        self._stage = Stage.OVER
        self._reason = reason
        self._changed()

    def _check_reason(self) -> None:
        if self._reason is not None:
            raise type(self._reason)(self._reason.what, self._reason.remedy, map_id=self._reason.map_id)

    def _changed(self) -> None:
        self._heard = self._clock()
        for wake in self._listeners:
            wake()


class Follower:
    """How far one reader is with one share of a shuffle's maps; used by one thread."""

    def __init__(self, pipeline: Pipeline, share: Share, had: set[int], patience: float, clock: Clock) -> None:
        self._pipeline = pipeline
        self._share = share
        self._had = had
        self._patience = patience
        self._clock = clock
        self._position = 0
        self._since = clock()
        self.complete = False
        """Nothing more comes."""

    def next(self) -> list[tuple[int, int]]:
        """The (map id, index) pairs that are new: none while there is nothing, and when :attr:`complete` is set.

        Raises:
            AttemptLost: what the reader has had does not count any more.
            ProducerAborted: the producer gave up.
            ProducerSilent: it has said nothing for too long.
            MapUnknown: the shuffle was released, or this worker does not have all of it.
        """
        found: list[tuple[int, int]] = []
        while not found:
            entries, position, complete, lost = self._pipeline.news(self._position)
            if not lost.isdisjoint(self._had):
                raise self._is_lost(min(lost & self._had))
            left_out = self._had | lost
            found = [
                (map_id, index)
                for map_id, index in entries
                if index % self._share.modulus == self._share.remainder and map_id not in left_out
            ]
            if position == self._position:
                self._look_at_the_end(complete=complete)
                return []
            self._position = position
        self._had.update(map_id for map_id, _ in found)
        return found

    def _look_at_the_end(self, *, complete: bool) -> None:
        if complete:
            if not self._pipeline.has_all(self._had):
                raise self._is_lost(0)
            self.complete = True
        elif self._clock() - max(self._pipeline.heard, self._since) > self._patience:
            raise ProducerSilent(
                f"nobody has written to shuffle {self._pipeline.name} for {self._patience:.0f} s",
                "is its producer running?",
            )

    def _is_lost(self, map_id: int) -> AttemptLost:
        return AttemptLost(
            f"attempt {map_id} of shuffle {self._pipeline.name} was read and does not count any more"
            if map_id
            else f"not all that was read of shuffle {self._pipeline.name} counts",
            "read all of it again",
            map_id=map_id,
        )
