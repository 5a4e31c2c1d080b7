"""The files of one shuffle on one disk: ``data`` with the segments, and ``index``, a journal of runs and commits.

``data`` has nothing but segments: small ones in runs sorted by partition, large ones in the order of arrival. ``index``
is a sequence of records, each with its own CRC32C: a *run* (the locations of segments, sorted by partition) or a
*commit* (a map whose segments count). Data is written before the record of its run, and records are written before
anything is acknowledged. So the data that a record names exists, even after ``kill -9``. An incomplete record at the
end, left by a crash, is overwritten.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import errno
import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from awscrt.checksums import crc32c  # type: ignore[import-untyped]  # has no types

from sluice.core import StoreError, make_private_directory
from sluice.runtime.shuffle.data_plane import DATA_ENTRY, DiskFailed, MapUnknown, SegmentCorrupt

ROW = np.dtype([*[(name, DATA_ENTRY[name]) for name in DATA_ENTRY.names or ()], ("offset", "<u8")])
"""A segment and its location. It begins like a row of the table of DATA."""
Rows = npt.NDArray[np.void]

MAX_RUN_SEGMENTS = 16 << 20
_MAGIC = 0x31494C53
_RECORD = struct.Struct("<IBBHIIqQQ")
"""magic, kind, two reserved, rows, CRC32C of the payload, map, a number (run: end of data; commit: bytes), CRC32C."""
_RUN, _COMMIT = 1, 2
_IOV_MAX = 1024
_FILE_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Run:
    """A run of segments in ``data``. Its rows, sorted by partition, stay in ``index``.

    Attributes:
        partitions: the partitions in it, ascending.
        starts: the first row of each partition, followed by the number of rows.
        checks: the CRC32C of each partition's rows. Rows are read again later and may have changed by then; without
            this, a row that names a wrong map would go unnoticed.
        maps: the maps in it.
        rows_at: the offset of the rows in ``index``.
        size: bytes of data.
    """

    partitions: array.array[int]
    starts: array.array[int]
    checks: array.array[int]
    maps: frozenset[int]
    rows_at: int
    size: int

    def span(self, first: int, end: int) -> tuple[int, int]:
        """Return the range of the rows whose partitions are in ``first`` … ``end`` - 1."""
        low, high = self.within(first, end)
        return self.starts[low], self.starts[high]

    def within(self, first: int, end: int) -> tuple[int, int]:
        """Return the range of indices in :attr:`partitions` that are in ``first`` … ``end`` - 1."""
        low = bisect.bisect_left(self.partitions, first)
        return low, bisect.bisect_left(self.partitions, end, low)

    def changed(self, low: int, high: int, rows: memoryview) -> int | None:
        """Return the first partition, of the indices ``low`` … ``high`` - 1, whose ``rows`` have changed, or None."""
        at = 0
        for number in range(low, high):
            stop = at + (self.starts[number + 1] - self.starts[number]) * ROW.itemsize
            if crc32c(rows[at:stop]) != self.checks[number]:
                return self.partitions[number]
            at = stop
        return None


@dataclass(frozen=True, slots=True)
class Committed:
    """A map whose segments count."""

    map_id: int
    segments: int
    size: int


def describe_rows(rows: Rows, rows_at: int) -> Run:
    """Return the run for ``rows``, which are sorted by partition and stored at ``rows_at`` in the index."""
    partitions, starts = np.unique(rows["partition"], return_index=True)
    stops = np.append(starts, len(rows)).astype(np.int64)
    payload = memoryview(rows.tobytes())
    places = (stops * ROW.itemsize).tolist()
    return Run(
        array.array("I", partitions.astype(np.uint32).tobytes()),
        array.array("q", stops.tobytes()),
        array.array("I", [crc32c(payload[start:stop]) for start, stop in itertools.pairwise(places)]),
        frozenset(np.unique(rows["map"]).tolist()),
        rows_at,
        int(rows["length"].sum(dtype=np.int64)),
    )


class Volume:
    """The pair of open files. Call :meth:`recover` first if they exist. Writing and reading are thread-safe.

    Args:
        directory: the directory of the files.
        prepare: may put an old file at the path of ``data``. Without an index, it is overwritten from the beginning.
        on_growth: called with the number of bytes by which the files grow.

    Raises:
        OSError: the files cannot be opened.
    """

    def __init__(
        self,
        directory: Path,
        prepare: Callable[[Path], object] = lambda _: None,
        on_growth: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.directory = directory
        self._on_growth = on_growth
        try:
            make_private_directory(directory)
            prepare(self.data)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._data = os.open(self.data, flags, _FILE_MODE)
            self._index = os.open(directory / "index", flags, _FILE_MODE)
        except StoreError as error:
            number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
            raise OSError(number or errno.EIO, error.what) from error
        self._lock = threading.Lock()
        self.data_end = 0
        self._index_end = 0
        self._writers = 0
        self._retired = False

    @property
    def size(self) -> int:
        """The size of both files in bytes."""
        return self.data_end + self._index_end

    @property
    def data(self) -> Path:
        """The path of the file with the segments."""
        return self.directory / "data"

    def retire(self) -> bool:
        """Accept no more data; returns whether no write is in progress, so that the file can be reused."""
        with self._lock:
            self._retired = True
            return not self._writers

    def recover(self) -> Iterator[Run | Committed]:
        """Yield the records of the journal, up to the first incomplete or damaged one."""
        size = os.fstat(self._index).st_size
        data_size = os.fstat(self._data).st_size
        while self._index_end + _RECORD.size <= size:
            head = os.pread(self._index, _RECORD.size, self._index_end)
            magic, kind, _, _, count, payload_crc, map_id, number, check = _RECORD.unpack(head)
            if magic != _MAGIC or crc32c(head[:-8]) != check or count > MAX_RUN_SEGMENTS:
                return
            if kind == _COMMIT:
                self._index_end += _RECORD.size
                self._on_growth(_RECORD.size)
                yield Committed(map_id, count, number)
                continue
            payload = os.pread(self._index, count * ROW.itemsize, self._index_end + _RECORD.size)
            if kind != _RUN or len(payload) != count * ROW.itemsize or crc32c(payload) != payload_crc:
                return
            if number > data_size:
                return
            rows = np.frombuffer(payload, ROW)
            run = describe_rows(rows, self._index_end + _RECORD.size)
            self._index_end += _RECORD.size + len(payload)
            self._on_growth(_RECORD.size + len(payload) + max(0, number - self.data_end))
            self.data_end = max(self.data_end, number)
            yield run

    def write(self, pieces: Sequence[memoryview], size: int) -> int:
        """Write ``size`` bytes of data, given as ``pieces``; returns their offset. Several threads may write at once.

        Raises:
            OSError: the disk failed; the reserved range stays unused.
            MapUnknown: the shuffle was released.
        """
        with self._lock:
            if self._retired:
                raise MapUnknown(f"the shuffle in {self.directory} was released")
            offset = self.data_end
            self.data_end += size
            self._writers += 1
        self._on_growth(size)
        try:
            _write(self._data, pieces, offset)
        finally:
            with self._lock:
                self._writers -= 1
        return offset

    def append_run(self, rows: Rows, overhead: int = 0) -> Run:
        """Append the record of a run to the index: ``rows``, sorted by partition, with their offsets in the data.

        Each segment takes ``overhead`` bytes more in the data than its length.

        Raises:
            OSError: the disk failed; nothing of the run counts.
        """
        payload = rows.tobytes()
        end = int((rows["offset"] + rows["length"]).max()) + overhead
        head = _record(_RUN, len(rows), crc32c(payload), 0, end)
        with self._lock:
            at = self._index_end + _RECORD.size
            self._index_end = _write(self._index, [memoryview(head), memoryview(payload)], self._index_end)
        self._on_growth(len(head) + len(payload))
        return describe_rows(rows, at)

    def append_commit(self, committed: Committed) -> None:
        """Append the commit of a map to the index; raises :class:`OSError`."""
        record = _record(_COMMIT, committed.segments, 0, committed.map_id, committed.size)
        with self._lock:
            self._index_end = _write(self._index, [memoryview(record)], self._index_end)
        self._on_growth(len(record))

    def rows(self, run: Run, first: int, end: int) -> Rows:
        """Read the rows of a run whose partitions are in ``first`` … ``end`` - 1 from the index.

        Raises:
            DiskFailed: the disk cannot be read.
            SegmentCorrupt: the rows have changed.
        """
        low, high = run.within(first, end)
        start, stop = run.starts[low], run.starts[high]
        if start == stop:
            return np.empty(0, ROW)
        size = (stop - start) * ROW.itemsize
        try:
            data = os.pread(self._index, size, run.rows_at + start * ROW.itemsize)
        except OSError as error:
            raise DiskFailed(
                f"cannot read the index in {self.directory}: {error.strerror or error}", partition=first
            ) from error
        if len(data) != size:
            raise SegmentCorrupt(f"the index in {self.directory} was cut off", partition=first)
        if (changed := run.changed(low, high, memoryview(data))) is not None:
            raise SegmentCorrupt(f"the index in {self.directory} has changed", partition=changed)
        return np.frombuffer(data, ROW)

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill ``view`` with data from ``offset`` on; returns the bytes read, fewer at the end of the file.

        Raises:
            DiskFailed: the disk cannot be read.
        """
        try:
            done = os.preadv(self._data, [view], offset)
            while done < len(view):
                got = os.preadv(self._data, [view[done:]], offset + done)
                if got == 0:
                    break
                done += got
        except OSError as error:
            raise DiskFailed(f"cannot read the data in {self.directory}: {error.strerror or error}") from error
        return done

    def __del__(self) -> None:
        """Close the files. Readers may use them until they drop their reference to this object."""
        for descriptor in (getattr(self, "_data", -1), getattr(self, "_index", -1)):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _record(kind: int, count: int, payload_crc: int, map_id: int, number: int) -> bytes:
    head = _RECORD.pack(_MAGIC, kind, 0, 0, count, payload_crc, map_id, number, 0)[:-8]
    return head + struct.pack("<Q", crc32c(head))


def _write(descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
    """Write ``pieces`` back to back from ``offset`` on; returns the offset of their end."""
    for first in range(0, len(pieces), _IOV_MAX):
        batch = list(pieces[first : first + _IOV_MAX])
        while batch:
            written = os.pwritev(descriptor, batch, offset)
            offset += written
            while batch and written >= len(batch[0]):
                written -= len(batch.pop(0))
            if batch and written:
                batch[0] = batch[0][written:]
    return offset
