"""The files of one shuffle on all disks of a worker: chooses the disk for new data, and writes sorted runs."""

from __future__ import annotations

import errno
import functools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from sluice.runtime.shuffle.data_plane import DiskFailed, MapUnknown
from sluice.runtime.shuffle.worker.storage.at_rest import OVERHEAD_BYTES, SegmentCipher
from sluice.runtime.shuffle.worker.storage.attempts import Frame
from sluice.runtime.shuffle.worker.storage.budget import Holding
from sluice.runtime.shuffle.worker.storage.disks import Disk, Disks
from sluice.runtime.shuffle.worker.storage.located import Located, read_plain, read_sealed
from sluice.runtime.shuffle.worker.storage.planning import back_to_back, pieces_of, rows_of
from sluice.runtime.shuffle.worker.storage.spare_files import SpareFiles
from sluice.runtime.shuffle.worker.storage.volume import Committed, Rows, Run, Volume

_T = TypeVar("_T")
NumberedRun = tuple[int, Run]
"""A run and the number of its volume."""


class ShuffleFiles:
    """The volumes of a shuffle, one on each disk that was used; thread-safe.

    Args:
        name: ``job/shuffle``; also the folder on each disk.
        disks: the worker's disks.
        spares: keeps the files of ended shuffles for reuse, including those of this shuffle.
        holding: charged for what is stored.
        cipher: encrypts what is written; None: no encryption.
    """

    def __init__(
        self, name: str, disks: Disks, spares: SpareFiles, holding: Holding, cipher: SegmentCipher | None
    ) -> None:
        self._name = name
        self._job_id = name.partition("/")[0]
        self._disks = disks
        self._spares = spares
        self._holding = holding
        self._cipher = cipher
        self._overhead = OVERHEAD_BYTES if cipher is not None else 0
        self._choosing = threading.Lock()
        self._removed = False
        self.volumes: list[Volume] = []
        """The volumes by number. Runs and segments refer to these numbers."""
        self._disk_of: list[Disk] = []

    @property
    def sealed(self) -> bool:
        """Whether the files are encrypted."""
        return self._cipher is not None

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(volume.size for volume in self.volumes)

    def write(self, write: Callable[[Volume], _T]) -> tuple[int, _T]:
        """Call ``write`` with the volume in use, or with one on another disk if that disk fails.

        Returns the number of the volume and what ``write`` returned.

        Raises:
            DiskFailed: no disk can write the data.
            MapUnknown: the shuffle was released.
        """
        for _ in range(len(self._disks.all) + 1):
            try:
                with self._choosing:
                    number = self._choose()
            except OSError:  # that disk is excluded now: choose another one
                continue
            try:
                return number, write(self.volumes[number])
            except OSError as error:
                self._disks.exclude(self._disk_of[number], error)
        raise DiskFailed(f"no disk takes data of shuffle {self._name}")

    def write_frames(self, frames: list[Frame], size: int, region: memoryview) -> tuple[list[NumberedRun], list[int]]:
        """Write the data of ``frames`` that is in ``region``, ``size`` bytes, and the record of a run for each volume.

        Returns the runs, and the maps that are lost because a record could not be written.
        """
        by_volume: dict[int, list[Rows]] = {}
        for number in {frame.volume for frame in frames if frame.lease is None}:
            written = [frame for frame in frames if frame.lease is None and frame.volume == number]
            by_volume[number] = [rows_of(written)]
        in_memory = [frame for frame in frames if frame.lease is not None]
        if in_memory:
            rows = rows_of(in_memory)
            rows = rows[np.lexsort((rows["sequence"], rows["map"], rows["partition"]))]
            pieces = pieces_of(rows, region) if self._cipher is None else _sealed(rows, region, self._cipher)
            size += self._overhead * len(rows)
            number, start = self.write(lambda volume: volume.write(pieces, size))
            rows["offset"] = back_to_back(rows, start, self._overhead)
            by_volume.setdefault(number, []).append(rows)
        runs, lost = [], []
        for number, parts in sorted(by_volume.items()):
            rows = np.concatenate(parts)
            rows = rows[np.lexsort((rows["offset"], rows["partition"]))]
            try:
                runs.append((number, self.volumes[number].append_run(rows, self._overhead)))
            except OSError as error:
                self._disks.exclude(self._disk_of[number], error)
                lost += np.unique(rows["map"]).tolist()
        return runs, lost

    def read(self, at: Located, row: int, end: int, view: memoryview) -> None:
        """Read the data of segments ``row`` … ``end`` - 1 into ``view``, which has their size.

        Raises:
            SegmentCorrupt: something is missing or has changed.
            DiskFailed: a disk cannot be read.
            MapUnknown: the shuffle was released.
        """
        if self._removed:
            raise MapUnknown(f"shuffle {self._name} was released")
        if self._cipher is None:
            read_plain(self.volumes, at, row, end, view)
        else:
            read_sealed(self.volumes, at, row, end, view, cipher=self._cipher)

    def recover(self, disk: Disk, directory: Path) -> Iterator[NumberedRun | Committed]:
        """Yield the runs and commits that an earlier process wrote to ``directory``."""
        number = len(self.volumes)
        volume = self._add(disk, Volume(directory, on_growth=self._holding.store))
        for entry in volume.recover():
            yield (number, entry) if isinstance(entry, Run) else entry

    def remove(self) -> None:
        """Remove all files, or keep them as spare files."""
        with self._choosing:
            self._removed = True
            for disk, volume in zip(self._disk_of, self.volumes, strict=True):
                if volume.retire():
                    self._spares.keep(self._job_id, disk.path, volume.data)
                else:
                    self._spares.forget(volume.data)
                shutil.rmtree(volume.directory, ignore_errors=True)

    def _choose(self) -> int:
        """Return the number of the volume for new data. Spare files are deleted if a disk has no room left."""
        if self._removed:
            raise MapUnknown(f"shuffle {self._name} was released")
        if self._disk_of:
            disk = self._disk_of[-1]
            if self._disks.usable(disk) or (self._spares.drop(disk.path) and self._disks.usable(disk)):
                return len(self._disk_of) - 1
        try:
            chosen = self._disks.choose()
        except DiskFailed:
            if not self._spares.drop():
                raise
            chosen = self._disks.choose()
        if chosen in self._disk_of:
            return self._disk_of.index(chosen)
        reuse = functools.partial(self._spares.reuse, self._job_id, chosen.path)
        try:
            volume = Volume(chosen.path / self._name, prepare=reuse, on_growth=self._holding.store)
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:  # not a fault of the disk
                raise DiskFailed(f"cannot open files of shuffle {self._name}: {error.strerror}") from error
            self._disks.exclude(chosen, error)
            raise
        self._add(chosen, volume)
        return len(self.volumes) - 1

    def _add(self, disk: Disk, volume: Volume) -> Volume:
        self._disk_of.append(disk)
        self.volumes.append(volume)
        return volume


def _sealed(rows: Rows, region: memoryview, cipher: SegmentCipher) -> list[memoryview]:
    columns = (rows[name].tolist() for name in ("partition", "map", "sequence", "offset", "length"))
    return [
        cipher.seal(partition, map_id, sequence, region[offset : offset + length])
        for partition, map_id, sequence, offset, length in zip(*columns, strict=True)
    ]
