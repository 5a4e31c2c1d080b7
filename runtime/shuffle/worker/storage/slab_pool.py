"""The worker's managed memory: one region, in slabs, that cannot grow.

A frame's segments are laid into slabs before they are read, so that OpenSSL decrypts into their final place. Slabs are
shared by frames and come back when the last of their frames is written out. Whoever finds no room waits: that is the
back-pressure. All the room of a frame is taken at once or not at all, so that waiting frames hold nothing.

The tables of frames lie elsewhere, but count: so many slabs fewer are given out.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Sequence

from sluice.runtime.shuffle.data_plane import FrameRefused, ShuffleError, ShuffleUnavailable
from sluice.runtime.shuffle.worker.config import SLAB_BYTES

_PARK_BYTES = 64 << 10
"""A slab with less room than this takes no further frames."""
_WAIT_SECONDS = 0.5


class Slab:
    """One piece of the region."""

    __slots__ = ("frames", "start", "used")

    def __init__(self, start: int) -> None:
        self.start = start
        self.used = 0
        self.frames = 0


class Lease:
    """The room of one frame: ``extents`` are (start, stop, segments) in the region, in the order of the frame."""

    __slots__ = ("extents", "owner", "size", "slabs", "table_bytes", "waited_seconds")

    def __init__(self, owner: str, size: int, table_bytes: int = 0) -> None:
        self.owner = owner
        self.size = size
        self.table_bytes = table_bytes
        self.extents: list[tuple[int, int, int]] = []
        self.slabs: list[Slab] = []
        self.waited_seconds = 0.0
        """For how long there was no room for it."""


class SlabPool:
    """The region and who has what of it.

    Args:
        capacity_bytes: of the region; rounded down to whole slabs.
        high_watermark: share of it above which :attr:`pressed` is set.
        low_watermark: share of it down to which :attr:`pressed` stays set.
    """

    def __init__(self, capacity_bytes: int, high_watermark: float, low_watermark: float) -> None:
        count = capacity_bytes // SLAB_BYTES
        self._region = mmap.mmap(-1, count * SLAB_BYTES)
        self.view = memoryview(self._region)
        """The whole region."""
        self._free = [Slab(index * SLAB_BYTES) for index in range(count)]
        self._parked: list[Slab] = []
        self._capacity = count
        self._high = high_watermark * self.capacity_bytes
        self._low = low_watermark * self.capacity_bytes
        self._condition = threading.Condition()
        self._reading: dict[str, int] = {}
        self._tables = 0
        self._waiting = 0
        self._stopped: ShuffleError | None = None
        self._failed: ShuffleError | None = None
        self.pressed = threading.Event()
        """Set while data should be written out although nobody asked for it."""
        self.peak_bytes = 0
        """The most that was ever in use."""
        self.waits = 0
        self.waited_seconds = 0.0

    @property
    def used_bytes(self) -> int:
        """In slabs that hold anything, and in tables."""
        return (self._capacity - len(self._free)) * SLAB_BYTES + self._tables

    @property
    def capacity_bytes(self) -> int:
        """Of the region."""
        return self._capacity * SLAB_BYTES

    def lease(self, owner: str, lengths: Sequence[int], table_bytes: int = 0) -> Lease:
        """Room for a frame's segments and its table, waiting for it when there is none.

        Frames that are being received may hold half of the region per owner: who sends slowly is short of memory
        alone.

        Raises:
            ShuffleError: the pool was stopped, with its reason.
        """
        size = sum(lengths)
        total = size + table_bytes
        since = 0.0
        with self._condition:
            while True:
                if self._stopped is not None:
                    raise self._stopped.again()
                held = self._reading.get(owner, 0)
                if not held or (held + total) * 2 <= self.capacity_bytes:
                    lease = self._try(Lease(owner, size, table_bytes), lengths)
                    if lease is not None:
                        break
                if self._failed is not None:
                    raise self._failed.again()
                if not since:
                    since = time.monotonic()
                    self.waits += 1
                self._waiting += 1
                self.pressed.set()
                self._condition.wait(_WAIT_SECONDS)
                self._waiting -= 1
            if since:
                lease.waited_seconds = time.monotonic() - since
                self.waited_seconds += lease.waited_seconds
            self._reading[owner] = held + total
            return lease

    def received(self, lease: Lease) -> None:
        """The frame is complete: its slabs can take others beside it."""
        with self._condition:
            self._no_longer_reading(lease)
            for slab in lease.slabs:
                if slab.used + _PARK_BYTES <= SLAB_BYTES:
                    self._parked.append(slab)

    def abandon(self, lease: Lease) -> None:
        """The frame never became complete."""
        with self._condition:
            self._no_longer_reading(lease)
        self.release([lease])

    def release(self, leases: list[Lease]) -> None:
        """The frames are not needed in memory any more."""
        self._release(leases, sum(lease.table_bytes for lease in leases))

    def release_data(self, lease: Lease) -> None:
        """A frame's segments are not needed in memory any more; its table is, until :meth:`release_tables`."""
        self._release([lease], 0)

    def release_tables(self, size: int) -> None:
        """Tables with ``size`` bytes together are not needed any more."""
        self._release([], size)

    def _release(self, leases: list[Lease], table_bytes: int) -> None:
        with self._condition:
            self._tables -= table_bytes
            for lease in leases:
                for slab in lease.slabs:
                    slab.frames -= 1
                    if slab.frames == 0:
                        slab.used = 0
                        if slab in self._parked:
                            self._parked.remove(slab)
                        self._free.append(slab)
            self._press()
            self._condition.notify_all()

    def stop(self, reason: ShuffleError | None = None) -> None:
        """Whoever waits, and whoever comes, gets ``reason``."""
        with self._condition:
            self._stopped = reason or ShuffleUnavailable("the worker is stopping")
            self._condition.notify_all()
        self.pressed.set()

    def fail(self, reason: ShuffleError | None) -> None:
        """Nothing can be written out because of ``reason``: who would have to wait gets that; None: it can again."""
        with self._condition:
            # Its traceback would keep what could not be written out.
            self._failed = None if reason is None else reason.with_traceback(None)
            self._condition.notify_all()

    def _no_longer_reading(self, lease: Lease) -> None:
        left = self._reading.pop(lease.owner, 0) - lease.size - lease.table_bytes
        if left > 0:
            self._reading[lease.owner] = left
        self._condition.notify_all()

    def _press(self) -> None:
        used = self.used_bytes
        if self._waiting or used > self._high:
            self.pressed.set()
        elif used <= self._low:
            self.pressed.clear()

    def _try(self, lease: Lease, lengths: Sequence[int]) -> Lease | None:
        """Lay the segments into a parked slab and free ones; None when there are not enough."""
        before: list[int] = []
        placed, count = 0, len(lengths)
        tables = self._tables + lease.table_bytes
        while placed < count:
            if not before and self._parked:
                slab = self._parked.pop()
            elif len(self._free) * SLAB_BYTES >= SLAB_BYTES + tables:
                slab = self._free.pop()
            else:
                self._give_back(lease, before)
                return None
            lease.slabs.append(slab)
            before.append(slab.used)
            room = SLAB_BYTES - slab.used
            if lease.size <= room and not placed:
                until, size = count, lease.size
            else:
                until, size = placed, 0
                while until < count and size + lengths[until] <= room:
                    size += lengths[until]
                    until += 1
            if until > placed:
                start = slab.start + slab.used
                lease.extents.append((start, start + size, until - placed))
                slab.used += size
                placed = until
            elif not slab.used:
                self._give_back(lease, before)
                raise FrameRefused("a segment larger than a slab")
        if len(self._free) * SLAB_BYTES < tables:
            self._give_back(lease, before)
            return None
        self._tables = tables
        for slab in lease.slabs:
            slab.frames += 1
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._press()
        return lease

    def _give_back(self, lease: Lease, before: list[int]) -> None:
        for slab, used in zip(lease.slabs, before, strict=True):
            slab.used = used
            (self._parked if slab.frames else self._free).append(slab)
