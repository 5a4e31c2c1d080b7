"""Who may read a shuffle while it is written, and what: decisions only, no I/O.

Each writer of such a shuffle has a share of its maps, those whose index has one remainder. It commits them one after
the other, and readers that follow the share get them in this order. A share ends when its writer says that it is
complete, and a shuffle when a writer gives it up, or when nobody has written to it for too long. What all readers of a
share have had can be forgotten: its writer says so, because readers may be at several workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.runtime.shuffle.data_plane import (
    MAX_MAPS_PER_BATCH,
    AttemptSuperseded,
    MapUnknown,
    ProducerSilent,
    Share,
    ShuffleError,
)
from sluice.runtime.shuffle.worker.storage.budget import ANNOUNCED_BYTES, SHARE_BYTES, Holding, unlimited

Clock = Callable[[], float]

NO_LIMIT = (1 << 32) - 1
"""The largest number that is told. Of maps: nobody reads, so nobody lacks any."""
MAX_GONE_READERS = 1024
"""Of so many that left before the end it is known what they have had; with more of them nothing is forgotten."""


class Progress(NamedTuple):
    """How far the readers of one share are.

    Attributes:
        unread: bytes that they have not taken.
        partitions: how many partitions they read.
        maps: how many of the first maps each of them has had.
    """

    unread: int
    partitions: int
    maps: int


@dataclass(slots=True)
class _Written:
    """What one writer has written."""

    first: int = 0
    """So many of its maps are forgotten."""
    maps: list[int] = field(default_factory=list)
    """The ids of those after them."""
    size: int = 0
    taken: int = 0
    claimed: int | None = None
    total: int | None = None
    """How many maps there are, when no more come."""
    failure: ShuffleError | None = None
    readers: set[ShareCursor] = field(default_factory=set)
    gone: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many maps those have had who left before the end, by partitions: they may come back."""

    @property
    def end(self) -> int:
        return self.first + len(self.maps)

    @property
    def unread(self) -> int:
        return max(0, self.size - self.taken)

    def known(self, number: int) -> int | None:
        return self.maps[number - self.first] if self.first <= number < self.end else None


class AnnouncedMaps:
    """The announced maps of one shuffle on one worker; safe for use by many threads.

    Args:
        name: of the shuffle.
        clock: for how long nobody writes.
        holding: what it is charged to; whoever made it gives it back.
    """

    def __init__(self, name: str, clock: Clock = time.monotonic, holding: Holding | None = None) -> None:
        self.name = name
        self._clock = clock
        self._holding = holding or unlimited()
        self._lock = threading.Lock()
        self._reason: ShuffleError | None = None
        self._shares: dict[Share, _Written] = {}
        self._listeners: set[Callable[[], None]] = set()
        self._heard = clock()

    @property
    def active(self) -> bool:
        """Whether it is read while it is written, and was not given up."""
        with self._lock:
            return self._reason is None and any(each.maps or each.readers for each in self._shares.values())

    # The writers' side

    def touch(self) -> None:
        """Somebody writes."""
        self._heard = self._clock()

    def claim(self, share: Share, index: int, map_id: int) -> None:
        """Let an attempt be the next map of its writer; until :meth:`disclaim`, no other can be. Again is harmless.

        Raises:
            AttemptSuperseded: another one is, or the share is complete.
            MapUnknown: maps before it are not here.
            ProducerAborted: nothing counts any more.
            QuotaExceeded: the job has announced too many.
        """
        number = index // share.modulus
        with self._lock:
            self.check_open()
            written = self._written(share)
            if number > written.end:
                raise MapUnknown(f"map {index} of shuffle {self.name} came before others of its writer", map_id=map_id)
            if number == written.end and written.total is None and written.claimed is None:
                self._holding.take(ANNOUNCED_BYTES)
                written.claimed = map_id
            if map_id != (written.claimed if number == written.end else written.known(number)):
                raise AttemptSuperseded(
                    f"attempt {map_id} of map {index} of shuffle {self.name} is not the one that counts", map_id=map_id
                )

    def disclaim(self, share: Share, map_id: int) -> None:
        """The attempt could not be committed."""
        with self._lock:
            written = self._shares[share]
            if written.claimed == map_id:
                written.claimed = None
                self._holding.charge(-ANNOUNCED_BYTES)

    def commit(self, share: Share, map_id: int, size: int) -> int:
        """What was claimed can be read from now on; again is harmless. Returns how much of its share is unread."""
        with self._lock:
            written = self._shares[share]
            if written.claimed == map_id:
                written.claimed = None
                written.maps.append(map_id)
                written.size += size
                self._changed()
            return written.unread

    def complete(self, share: Share, maps: int) -> Progress:
        """No maps of this share come after the first so many, and all of these are here; again is harmless.

        Raises:
            MapUnknown: one is not here (who follows has to follow another worker then), or it is complete with others.
            ShuffleError: the shuffle is over, or has too many shares.
        """
        with self._lock:
            self.check_open()
            written = self._written(share)
            if written.failure is None and maps != (written.end if written.total is None else written.total):
                error = MapUnknown(f"shuffle {self.name} has {written.end} of {maps} maps of one writer here")
                if written.total is not None:
                    raise error
                written.failure = error
                self._changed()
            if written.failure is not None:
                raise written.failure.again()
            if written.total is None:
                written.total = maps
                self._changed()
            return _progress(written)

    def forget(self, share: Share, maps: int) -> tuple[list[int], Progress]:
        """All readers, wherever they are, have had the first so many maps of a share.

        Returns the ids of those that were known until now, and how far the readers are. The last map stays, so that its
        commit can be repeated.
        """
        with self._lock:
            self.check_open()
            written = self._written(share)
            count = max(0, min(maps, written.end - 1) - written.first)
            forgotten, written.maps = written.maps[:count], written.maps[count:]
            written.first += count
            self._holding.charge(-count * ANNOUNCED_BYTES)
            return forgotten, _progress(written)

    def abort(self, reason: ShuffleError) -> None:
        """Who follows, and whoever comes to, gets ``reason``."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
                self._changed()

    def check_open(self) -> None:
        """Refuse what is written to a shuffle that is over."""
        if self._reason is not None:
            raise self._reason.again()

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
        self, share: Share, partitions: tuple[int, int], patience: float, *, had: int = 0, taken: int = 0
    ) -> ShareCursor:
        """A reader of ``share`` that waits ``patience`` seconds for somebody who writes.

        It has ``had`` so many maps already, and ``taken`` so many bytes elsewhere. Raises :class:`QuotaExceeded`.
        """
        cursor = ShareCursor(self, share, partitions, had, patience, clock=self._clock)
        with self._lock:
            written = self._written(share)
            written.readers.add(cursor)
            written.gone.pop(partitions, None)
        self.take(cursor, taken)
        return cursor

    def leave(self, reader: ShareCursor) -> None:
        """A reader has gone; if it has not had all, it says how much when it comes back."""
        with self._lock:
            written = self._shares[reader.share]
            if reader in written.readers:
                written.readers.discard(reader)
                written.taken -= reader.taken
                if not reader.complete and len(written.gone) <= MAX_GONE_READERS:
                    full = len(written.gone) == MAX_GONE_READERS
                    written.gone[(0, 0) if full else reader.partitions] = 0 if full else reader.had

    def take(self, reader: ShareCursor, size: int) -> None:
        """A reader has taken so much more."""
        with self._lock:
            reader.taken += size
            self._shares[reader.share].taken += size

    def news(self, of: Share, after: int) -> tuple[list[tuple[int, int]], bool]:
        """What a writer has committed after the first so many maps, as (map id, index), and whether no more come.

        Raises:
            ShuffleError: why nothing can be read any more.
        """
        with self._lock:
            self.check_open()
            written = self._shares[of]
            if written.failure is not None:
                raise written.failure.again()
            if after < written.first or (written.total is not None and after > written.total):
                raise MapUnknown(f"shuffle {self.name} does not have what comes after {after} maps of one writer")
            start = after - written.first
            ids = written.maps[start : start + MAX_MAPS_PER_BATCH]
            found = [(map_id, (after + n) * of.modulus + of.remainder) for n, map_id in enumerate(ids)]
            return found, written.total == after + len(found)

    @property
    def heard(self) -> float:
        """When somebody last wrote, on the clock."""
        return self._heard

    def _written(self, share: Share) -> _Written:
        written = self._shares.get(share)
        if written is None:
            self._holding.take(SHARE_BYTES)
            written = self._shares[share] = _Written()
        return written

    def _changed(self) -> None:
        self._heard = self._clock()
        for wake in self._listeners:
            wake()


class ShareCursor:
    """How far one reader is with one writer's maps; used by one thread, but for what :class:`AnnouncedMaps` changes.

    Attributes:
        share: what it reads.
        partitions: from and to.
        had: so many maps it has read to their end, as it says.
        taken: so many bytes.
        complete: nothing more comes.
    """

    def __init__(
        self,
        announced: AnnouncedMaps,
        share: Share,
        partitions: tuple[int, int],
        had: int,
        patience: float,
        *,
        clock: Clock,
    ) -> None:
        self._announced = announced
        self._patience = patience
        self._clock = clock
        self._position = had
        self._since = clock()
        self.share = share
        self.partitions = partitions
        self.had = had
        self.taken = 0
        self.complete = False

    def take(self, size: int, maps: int = 0) -> None:
        """The reader has room for so much more: it has taken that of what it was sent. It has had so many maps now."""
        self.had = max(self.had, min(maps, self._position, NO_LIMIT))
        self._announced.take(self, size)

    def close(self) -> None:
        """The reader has gone."""
        self._announced.leave(self)

    def next(self) -> list[tuple[int, int]]:
        """The (map id, index) pairs that are new: none while there is nothing, and when :attr:`complete` is set.

        Raises:
            ProducerAborted: a writer gave up.
            ProducerSilent: nobody has written for too long.
            MapUnknown: the shuffle was released, or this worker does not have all of it.
        """
        found, complete = self._announced.news(self.share, self._position)
        self._position += len(found)
        if found:
            return found
        if complete:
            self.complete = True
        elif self._clock() - max(self._announced.heard, self._since) > self._patience:
            raise ProducerSilent(
                f"nobody has written to shuffle {self._announced.name} for {self._patience:.0f} s",
                "is its producer running?",
            )
        return []


def _progress(written: _Written) -> Progress:
    ranges = {reader.partitions for reader in written.readers}
    had = [reader.had for reader in written.readers] + list(written.gone.values())
    partitions = sum(end - first for first, end in ranges)
    return Progress(written.unread, min(partitions, NO_LIMIT), min(had, default=NO_LIMIT))
