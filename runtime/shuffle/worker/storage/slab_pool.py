"""The worker's managed memory: one region of fixed size, divided into slabs.

The segments of a frame get their places in slabs before they are received, so that OpenSSL decrypts directly into them.
Frames share slabs. A slab is free again when the last of its frames is written out. A writer that finds no room waits;
this is the back-pressure. A frame gets all of its memory at once or none, so that waiting frames hold no memory.

The tables of frames are stored elsewhere but count as used memory: correspondingly fewer slabs are handed out.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Sequence

from sluice.runtime.shuffle.data_plane import FrameRefused, ShuffleError, ShuffleUnavailable
from sluice.runtime.shuffle.worker.config import SLAB_BYTES

_PARK_BYTES = 64 << 10
"""A slab with less free room than this takes no further frames."""
_WAIT_SECONDS = 0.5


class Slab:
    """One slab of the region."""

    __slots__ = ("frames", "start", "used")

    def __init__(self, start: int) -> None:
        self.start = start
        self.used = 0
        self.frames = 0


class Lease:
    """The memory of one frame. ``extents`` are (start, stop, segments) in the region, in the order of the frame."""

    __slots__ = ("extents", "owner", "size", "slabs", "table_bytes", "waited_seconds")

    def __init__(self, owner: str, size: int, table_bytes: int = 0) -> None:
        self.owner = owner
        self.size = size
        self.table_bytes = table_bytes
        self.extents: list[tuple[int, int, int]] = []
        self.slabs: list[Slab] = []
        self.waited_seconds = 0.0
        """How long the frame waited for memory."""


class SlabPool:
    """The region and its leases.

    Args:
        capacity_bytes: the size of the region; it is rounded down to whole slabs.
        high_watermark: fraction in use above which :attr:`pressed` is set.
        low_watermark: fraction in use at which :attr:`pressed` is cleared.
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
        """Set while data should be written out because memory is short."""
        self.peak_bytes = 0
        """The peak of :attr:`used_bytes`."""
        self.waits = 0
        self.waited_seconds = 0.0

    @property
    def used_bytes(self) -> int:
        """The size of all slabs in use, and of tables."""
        return (self._capacity - len(self._free)) * SLAB_BYTES + self._tables

    @property
    def capacity_bytes(self) -> int:
        """The size of the region."""
        return self._capacity * SLAB_BYTES

    def lease(self, owner: str, lengths: Sequence[int], table_bytes: int = 0) -> Lease:
        """Allocate memory for a frame's segments and its table; waits if there is none.

        The frames of one owner that are being received may hold at most half of the region, so that a slow sender
        cannot take all memory from others.

        Raises:
            ShuffleError: the pool was stopped, or nothing can be written out; this is the reason given for it.
        """
        size = sum(lengths)
        total = size + table_bytes
        since = 0.0
        with self._condition:
            while True:
                if self._stopped is not None:
                    raise self._stopped.fresh_copy()
                held = self._reading.get(owner, 0)
                if not held or (held + total) * 2 <= self.capacity_bytes:
                    lease = self._try(Lease(owner, size, table_bytes), lengths)
                    if lease is not None:
                        break
                if self._failed is not None:
                    raise self._failed.fresh_copy()
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
        """Record that a frame is complete, so that its slabs can take other frames."""
        with self._condition:
            self._no_longer_reading(lease)
            for slab in lease.slabs:
                if slab.used + _PARK_BYTES <= SLAB_BYTES:
                    self._parked.append(slab)

    def abandon(self, lease: Lease) -> None:
        """Release a frame that never became complete."""
        with self._condition:
            self._no_longer_reading(lease)
        self.release([lease])

    def release(self, leases: list[Lease]) -> None:
        """Release frames that are no longer needed in memory."""
        self._release(leases, sum(lease.table_bytes for lease in leases))

    def release_data(self, lease: Lease) -> None:
        """Release the segments of a frame. Its table counts until :meth:`release_tables`."""
        self._release([lease], 0)

    def release_tables(self, size: int) -> None:
        """Release tables with ``size`` bytes in total."""
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
        """Stop the pool: current and future waiters get ``reason``."""
        with self._condition:
            self._stopped = reason or ShuffleUnavailable("the worker is stopping")
            self._condition.notify_all()
        self.pressed.set()

    def fail(self, reason: ShuffleError | None) -> None:
        """Let waiters fail with ``reason`` because nothing can be written out; None: data can be written again."""
        with self._condition:
            # The traceback would keep references to the data that could not be written.
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
        """Place the segments in a parked slab and in free slabs; returns None if there are not enough."""
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
                raise FrameRefused("a segment is larger than a slab")
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
