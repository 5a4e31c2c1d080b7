"""Pipelined shuffles: which maps readers can get while the shuffle is still written. Decisions only, no I/O.

Each writer of such a shuffle has a share of its maps: those whose index has the same remainder. It commits them one by
one, and readers that follow the share get them in this order. A share ends when its writer states that it is complete.
A shuffle ends when a writer gives it up, or when no writer has written for too long. Maps that all readers of a share
have received can be forgotten. The writer decides this, because the readers may be connected to several workers.
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
from sluice.runtime.shuffle.worker.storage.budget import (
    ANNOUNCED_BYTES,
    READER_BYTES,
    SHARE_BYTES,
    Holding,
    unlimited,
)

Clock = Callable[[], float]

NO_LIMIT = (1 << 32) - 1
"""The largest number that is reported. As a number of maps, it means that there are no readers."""
MAX_GONE_READERS = 1024
"""How many readers that left early are remembered with their progress. With more of them, no map is forgotten."""


class Progress(NamedTuple):
    """The progress of the readers of one share.

    Attributes:
        unread: bytes that they have not taken yet.
        partitions: how many partitions they read.
        maps: how many maps, counted from the first, all of them have received.
    """

    unread: int
    partitions: int
    maps: int


@dataclass(slots=True)
class _Written:
    """The state of one writer's share."""

    first: int = 0
    """The number of maps that were forgotten."""
    maps: list[int] = field(default_factory=list)
    """The ids of the maps after them."""
    size: int = 0
    taken: int = 0
    claimed: int | None = None
    total: int | None = None
    """The final number of maps, if the share is complete."""
    failure: ShuffleError | None = None
    readers: set[ShareCursor] = field(default_factory=set)
    gone: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many maps the readers that left early have received, by partition range. They may come back."""

    @property
    def end(self) -> int:
        return self.first + len(self.maps)

    @property
    def unread(self) -> int:
        return max(0, self.size - self.taken)

    def known(self, number: int) -> int | None:
        return self.maps[number - self.first] if self.first <= number < self.end else None


class AnnouncedMaps:
    """The announced maps of one shuffle on one worker; thread-safe.

    Args:
        name: the name of the shuffle.
        clock: measures how long the writers are silent.
        holding: what the memory is charged to; its creator closes it.
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
        """Whether the shuffle has announced maps or followers, and was not given up."""
        with self._lock:
            return self._reason is None and any(each.maps or each.readers for each in self._shares.values())

    # The writers' side

    def touch(self) -> None:
        """Record that a writer is active."""
        self._heard = self._clock()

    def claim(self, share: Share, index: int, map_id: int) -> None:
        """Reserve the next map of a writer for an attempt, until :meth:`commit` or :meth:`disclaim`; idempotent.

        Raises:
            AttemptSuperseded: another attempt has the map, or the share is complete.
            MapUnknown: earlier maps of the writer are missing here.
            ProducerAborted: the shuffle was given up.
            QuotaExceeded: the job has announced too many maps.
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
        """Withdraw the claim of an attempt that could not be committed."""
        with self._lock:
            written = self._shares[share]
            if written.claimed == map_id:
                written.claimed = None
                self._holding.charge(-ANNOUNCED_BYTES)

    def commit(self, share: Share, map_id: int, size: int) -> int:
        """Make a claimed map readable; idempotent. Returns how many bytes of the share are unread."""
        with self._lock:
            written = self._shares[share]
            if written.claimed == map_id:
                written.claimed = None
                written.maps.append(map_id)
                written.size += size
                self._changed()
            return written.unread

    def complete(self, share: Share, maps: int) -> Progress:
        """Complete a share, which has ``maps`` maps in all; idempotent.

        Raises:
            MapUnknown: a map is missing here, so that readers must follow another worker; or the share was completed
                with another number of maps.
            ShuffleError: the shuffle has ended, or has too many shares.
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
                raise written.failure.fresh_copy()
            if written.total is None:
                written.total = maps
                self._changed()
            return _progress(written)

    def forget(self, share: Share, maps: int) -> tuple[list[int], Progress]:
        """Forget the first ``maps`` maps of a share, which all readers on all workers have received.

        Returns the ids of the maps that this call forgot, and the progress of the readers. The last map is kept, so
        that its commit can be repeated.
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
        """End the shuffle: current and future followers get ``reason``."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
                self._changed()

    def check_open(self) -> None:
        """Raise the reason if the shuffle was aborted."""
        if self._reason is not None:
            raise self._reason.fresh_copy()

    # The readers' side

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` on each change. It may be called from any thread."""
        with self._lock:
            self._listeners.add(wake)

    def unlisten(self, wake: Callable[[], None]) -> None:
        """Stop calling ``wake``."""
        with self._lock:
            self._listeners.discard(wake)

    def follow(
        self,
        share: Share,
        partitions: tuple[int, int],
        patience: float,
        *,
        maps_received: int = 0,
        bytes_taken: int = 0,
    ) -> ShareCursor:
        """Add a reader of ``share`` that waits at most ``patience`` seconds for a silent writer.

        ``maps_received`` is the number of maps, and ``bytes_taken`` the number of bytes, that it received from another
        worker. Raises :class:`QuotaExceeded`.
        """
        cursor = ShareCursor(self, share, partitions, maps_received, patience, clock=self._clock)
        with self._lock:
            written = self._written(share)
            if written.gone.pop(partitions, None) is None:  # otherwise its charge goes on
                self._holding.take(READER_BYTES)
            written.readers.add(cursor)
        self.take(cursor, bytes_taken)
        return cursor

    def leave(self, reader: ShareCursor) -> None:
        """Remove a reader. If it has not received all maps, its progress is remembered, because it may come back."""
        with self._lock:
            written = self._shares[reader.share]
            if reader in written.readers:
                written.readers.discard(reader)
                written.taken -= reader.bytes_taken
                remembered = len(written.gone)
                if not reader.complete and len(written.gone) <= MAX_GONE_READERS:
                    full = len(written.gone) == MAX_GONE_READERS
                    written.gone[(0, 0) if full else reader.partitions] = 0 if full else reader.maps_received
                if len(written.gone) == remembered:
                    self._holding.charge(-READER_BYTES)

    def take(self, reader: ShareCursor, size: int) -> None:
        """Record that a reader took ``size`` more bytes."""
        with self._lock:
            reader.bytes_taken += size
            self._shares[reader.share].taken += size

    def maps_after(self, share: Share, after: int) -> tuple[list[tuple[int, int]], bool]:
        """Return the maps after the first ``after`` maps of a share, as (map id, index), and whether no more follow.

        Raises:
            ShuffleError: the shuffle or the share cannot be read any more.
        """
        with self._lock:
            self.check_open()
            written = self._shares[share]
            if written.failure is not None:
                raise written.failure.fresh_copy()
            if after < written.first or (written.total is not None and after > written.total):
                raise MapUnknown(f"shuffle {self.name} does not have what comes after {after} maps of one writer")
            start = after - written.first
            ids = written.maps[start : start + MAX_MAPS_PER_BATCH]
            found = [(map_id, (after + n) * share.modulus + share.remainder) for n, map_id in enumerate(ids)]
            return found, written.total == after + len(found)

    @property
    def heard(self) -> float:
        """When a writer was last active, in seconds of the clock."""
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
    """The position of one reader in one writer's maps.

    It is used by one thread, except for what :class:`AnnouncedMaps` changes.

    Attributes:
        share: the share that it reads.
        partitions: the range of partitions, first and end.
        maps_received: how many maps the reader has received completely, by its own account.
        bytes_taken: how many bytes it has taken.
        complete: whether no more maps follow.
    """

    def __init__(
        self,
        announced: AnnouncedMaps,
        share: Share,
        partitions: tuple[int, int],
        maps_received: int,
        patience: float,
        *,
        clock: Clock,
    ) -> None:
        self._announced = announced
        self._patience = patience
        self._clock = clock
        self._position = maps_received
        self._since = clock()
        self.share = share
        self.partitions = partitions
        self.maps_received = maps_received
        self.bytes_taken = 0
        self.complete = False

    def take(self, size: int, maps: int = 0) -> None:
        """Record that the reader took ``size`` more bytes, and that it has received ``maps`` maps in total."""
        self.maps_received = max(self.maps_received, min(maps, self._position, NO_LIMIT))
        self._announced.take(self, size)

    def close(self) -> None:
        """Remove the reader from the share."""
        self._announced.leave(self)

    def next(self) -> list[tuple[int, int]]:
        """Return the (map id, index) pairs that are new. Sets :attr:`complete` when no more follow.

        Raises:
            ProducerAborted: a writer gave up the shuffle.
            ProducerSilent: no writer has written for too long.
            MapUnknown: the shuffle was released, or maps are missing on this worker.
        """
        found, complete = self._announced.maps_after(self.share, self._position)
        self._position += len(found)
        if found:
            return found
        if complete:
            self.complete = True
        elif self._clock() - max(self._announced.heard, self._since) > self._patience:
            raise ProducerSilent(
                f"no writer has written to shuffle {self._announced.name} for {self._patience:.0f} s",
                "check that its producer is running",
            )
        return []


def _progress(written: _Written) -> Progress:
    ranges = {reader.partitions for reader in written.readers}
    received = [reader.maps_received for reader in written.readers] + list(written.gone.values())
    partitions = sum(end - first for first, end in ranges)
    return Progress(written.unread, min(partitions, NO_LIMIT), min(received, default=NO_LIMIT))
