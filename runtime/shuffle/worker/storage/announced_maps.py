"""Who may read a shuffle before it is complete, and what: decisions only, no I/O.

A map whose writer names its index is *announced*: the first attempt of an index that commits counts, no other ever
does, and readers that follow get it. The producer ends the shuffle, complete share by share or given up; one that says
nothing for too long is taken for gone.

A worker that is drained gives all of this to another one: it holds what would change it, gives the rest, and from then
on sends everybody there. See ADR 65.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.data_plane import (
    MAX_MAPS_PER_BATCH,
    AttemptLost,
    AttemptSuperseded,
    MapUnknown,
    Moved,
    ProducerSilent,
    Share,
    ShuffleError,
)
from sluice.runtime.shuffle.worker.storage.budget import (
    ANNOUNCED_BYTES,
    FOLLOWED_MAP_BYTES,
    SHARE_BYTES,
    Holding,
    unlimited,
)

Clock = Callable[[], float]


class AnnouncedMaps:
    """The announced maps of one shuffle on one worker; safe for use by many threads.

    Args:
        name: of the shuffle.
        clock: for how long a producer is silent.
        holding: what it is charged to; whoever made it gives it back.
    """

    def __init__(self, name: str, clock: Clock = time.monotonic, holding: Holding | None = None) -> None:
        self.name = name
        self._clock = clock
        self._holding = holding or unlimited()
        self._lock = threading.Condition(threading.Lock())
        self._reason: ShuffleError | None = None
        self._ends: dict[Share, ShuffleError | None] = {}
        self._claimed: dict[int, int] = {}
        self._order: list[tuple[int, int]] = []
        self._committed: dict[int, int] = {}
        self._lost: set[int] = set()
        self._written: dict[Share, int] = {}
        self._taken: dict[Share, int] = {}
        self._listeners: set[Callable[[], None]] = set()
        self._heard = clock()
        self._held = False
        self._moved: WorkerAddress | None = None
        self._moved_at = 0.0
        self._late: dict[int, int] = {}
        self._produced = False

    # The producer's side

    def touch(self) -> None:
        """Somebody writes."""
        self._heard = self._clock()

    def alive(self) -> None:
        """The producer gave a sign of life; raises why it need not any more, or :class:`Moved`."""
        with self._lock:
            self._check_here(by_producer=True)
            self._produced = True
        self.touch()

    def check_here(self) -> None:
        """Raises :class:`Moved` where an attempt that begins now is to be announced elsewhere, or why none can be."""
        with self._lock:
            self._check_here()

    def claim(self, index: int, map_id: int) -> None:
        """Let an attempt be the one of its map; until :meth:`disclaim`, no other can be. Waits while this is held.

        Raises:
            AttemptSuperseded: another one is, or its share is complete.
            ProducerAborted: nothing counts any more.
            Moved: another worker decides; :attr:`indexes` has it from now on, with what was committed here.
            QuotaExceeded: the job has announced too many.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._held)
            self._check_reason()
            if self._moved is not None:
                if map_id not in self._late:
                    self._holding.take(ANNOUNCED_BYTES)
                self._late[map_id] = index
            self._check_here()
            over = any(share.has(index) for share in self._ends)
            if not (over or map_id in self._committed or map_id in self._lost or index in self._claimed):
                self._holding.take(ANNOUNCED_BYTES)
                self._claimed[index] = map_id
            if self._claimed.get(index) != map_id:
                raise AttemptSuperseded(
                    f"attempt {map_id} of map {index} of shuffle {self.name} is not the one that counts", map_id=map_id
                )

    def disclaim(self, index: int, map_id: int) -> None:
        """The attempt could not be committed."""
        with self._lock:
            if self._claimed.get(index) == map_id and map_id not in self._committed:
                del self._claimed[index]
                self._holding.charge(-ANNOUNCED_BYTES)
                self._lock.notify_all()

    def commit(self, index: int, map_id: int, size: int = 0, writers: int = 0) -> int:
        """What was claimed can be read from now on; again is harmless.

        Returns how many bytes readers have not taken of the share that the map belongs to with so many ``writers``.
        """
        with self._lock:
            share = Share(writers, index % writers) if writers else None
            if map_id not in self._committed:
                self._committed[map_id] = index
                self._order.append((map_id, index))
                if share is not None:
                    self._written[share] = self._written.get(share, 0) + size
                self._changed()
            return 0 if share is None else max(0, self._written.get(share, 0) - self._taken.get(share, 0))

    def take(self, share: Share, size: int) -> None:
        """A reader has taken so much more of a share; less, if it is gone and is to read that again."""
        with self._lock:
            taken = self._taken.pop(share, 0) + size
            if taken:
                self._taken[share] = taken

    def lose(self, maps: Collection[int]) -> None:
        """Committed attempts are gone: their maps can be written again, but not for readers that have had them."""
        with self._lock:
            self._lose(self._committed.keys() & maps)

    def complete(self, share: Share, maps: Collection[int]) -> None:
        """No other attempts of this share than these count, and all of these are here; again is harmless.

        Raises:
            MapUnknown: one is not here (who follows has to follow another worker then), or it is complete with others.
            ShuffleError: the shuffle is over, or has too many shares, or :class:`Moved`.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._held)
            self._check_here(by_producer=True)
            self._produced = False
            if (error := self._ends.get(share)) is not None:
                raise error.again()
            if share not in self._ends:
                self._holding.take(SHARE_BYTES)
            here = self._of(share)
            missing = set(maps) - here
            if share in self._ends and here != set(maps):
                raise MapUnknown(f"shuffle {self.name} is complete with other maps")
            if missing:
                error = MapUnknown(
                    f"shuffle {self.name} has {len(missing)} of {len(maps)} maps not here", map_id=min(missing)
                )
                self._ends[share] = error
                self._changed()
                raise error.again()
            self._lose(here.difference(maps))
            self._ends[share] = None
            self._changed()

    def abort(self, reason: ShuffleError) -> None:
        """Who follows, and whoever comes to, gets ``reason``."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
                self._changed()

    def check_given_up(self) -> None:
        """The producer is about to :meth:`abort`; raises :class:`Moved` where it is to say so elsewhere."""
        with self._lock:
            if self._reason is None:
                self._check_here(by_producer=True)

    def check_open(self) -> None:
        """Refuse what is written to a shuffle that is over."""
        if self._reason is not None:
            self._check_reason()

    # The way to another worker

    @property
    def indexes(self) -> dict[int, int]:
        """The index of each attempt that was committed here, or is to be committed where this went."""
        with self._lock:
            return self._committed | self._late

    @property
    def complete_shares(self) -> list[tuple[Share, set[int]]]:
        """Each with its maps."""
        with self._lock:
            return [(share, self._of(share)) for share, error in self._ends.items() if error is None]

    @property
    def moved(self) -> WorkerAddress | None:
        """Where it went."""
        return self._moved

    @property
    def over(self) -> bool:
        """Given up or released: nothing is to be given away."""
        return self._reason is not None

    def hold(self, seconds: float) -> bool:
        """From now on nothing more is committed until :meth:`let_go`; False when that takes too long."""
        with self._lock:
            self._held = True
            return self._lock.wait_for(lambda: len(self._claimed) <= len(self._committed), seconds)

    def let_go(self) -> None:
        """Whoever was held may go on, here or, after :meth:`move`, elsewhere."""
        with self._lock:
            self._held = False
            self._lock.notify_all()

    def move(self, to: WorkerAddress) -> None:
        """``to`` decides from now on, and has all that was announced here. Who follows is sent there."""
        with self._lock:
            self._moved, self._moved_at = to, self._clock()
            self._changed()

    def parties(self, patience: float) -> int:
        """How many follow here or produce, and do not know that it moved; none ``patience`` seconds after that."""
        with self._lock:
            if self._reason is not None or (self._moved is not None and self._clock() - self._moved_at > patience):
                return 0
            return len(self._listeners) + self._produced

    # The readers' side

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, from whichever thread, when there is something new."""
        with self._lock:
            self._listeners.add(wake)

    def unlisten(self, wake: Callable[[], None]) -> None:
        """No longer."""
        with self._lock:
            self._listeners.discard(wake)

    def follow(
        self, share: Share, had: Collection[int], patience: float, holding: Holding | None = None, taken: int = 0
    ) -> ShareCursor:
        """A reader of ``share`` that has the maps ``had`` already, and waits ``patience`` seconds for a producer.

        The maps that it has later are charged to ``holding``. It has ``taken`` so many bytes elsewhere.
        """
        cursor = ShareCursor(self, share, set(had), patience, clock=self._clock, holding=holding or unlimited())
        cursor.take(taken)
        return cursor

    def news(self, after: int, of: Share) -> tuple[list[tuple[int, int]], int, bool, set[int]]:
        """What was committed after the first so many, how many that are, whether no more come, and what was lost.

        Raises:
            ShuffleError: why nothing can be read any more, or :class:`Moved`.
        """
        with self._lock:
            self._check_here()
            end = next((share for share in self._ends if share.covers(of)), None)
            if end is not None and (error := self._ends[end]) is not None:
                raise error.again()
            until = min(len(self._order), after + MAX_MAPS_PER_BATCH)
            complete = end is not None and until == len(self._order)
            return self._order[after:until], until, complete, set(self._lost)

    def has_all(self, maps: Collection[int]) -> bool:
        """Whether all of ``maps`` count here."""
        with self._lock:
            return self._committed.keys() >= set(maps)

    @property
    def heard(self) -> float:
        """When the producer gave its last sign of life, on the clock."""
        return self._heard

    def _lose(self, maps: set[int]) -> None:
        if not maps:
            return
        self._lost |= maps
        self._committed = {each: index for each, index in self._committed.items() if each not in maps}
        self._claimed = {index: each for index, each in self._claimed.items() if each not in maps}
        self._changed()

    def _of(self, share: Share) -> set[int]:
        return {map_id for map_id, index in self._committed.items() if share.has(index)}

    def _check_here(self, *, by_producer: bool = False) -> None:
        self._check_reason()
        if self._moved is not None:
            if by_producer:
                self._produced = False
            raise Moved(f"shuffle {self.name} is at {self._moved.name} now", to=self._moved)

    def _check_reason(self) -> None:
        if self._reason is not None:
            raise self._reason.again()

    def _changed(self) -> None:
        self._heard = self._clock()
        self._lock.notify_all()
        for wake in self._listeners:
            wake()


class ShareCursor:
    """How far one reader is with one share of a shuffle's maps; used by one thread."""

    def __init__(
        self, pipeline: AnnouncedMaps, share: Share, had: set[int], patience: float, *, clock: Clock, holding: Holding
    ) -> None:
        self._pipeline = pipeline
        self._holding = holding
        self._share = share
        self._had = had
        self._patience = patience
        self._clock = clock
        self._position = 0
        self._since = clock()
        self._taken = 0
        self.complete = False
        """Nothing more comes."""

    def take(self, size: int) -> None:
        """The reader has room for so much more: it has taken that of what it was sent."""
        self._taken += size
        self._pipeline.take(self._share, size)

    def close(self) -> None:
        """The reader has gone; if it has not had all, it says how much when it comes back."""
        self.take(-self._taken)

    def next(self) -> list[tuple[int, int]]:
        """The (map id, index) pairs that are new: none while there is nothing, and when :attr:`complete` is set.

        Raises:
            AttemptLost: what the reader has had does not count any more.
            ProducerAborted: the producer gave up.
            ProducerSilent: it has said nothing for too long.
            MapUnknown: the shuffle was released, or this worker does not have all of it.
            Moved: it goes on at another worker.
            QuotaExceeded: the job's readers have too many maps.
        """
        found: list[tuple[int, int]] = []
        while not found:
            entries, position, complete, lost = self._pipeline.news(self._position, self._share)
            if not lost.isdisjoint(self._had):
                raise self._is_lost(min(lost & self._had))
            left_out = self._had | lost
            found = [(map_id, index) for map_id, index in entries if self._share.has(index) and map_id not in left_out]
            if position == self._position:
                self._look_at_the_end(complete=complete)
                return []
            self._position = position
        self._holding.take(FOLLOWED_MAP_BYTES * len(found))
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
