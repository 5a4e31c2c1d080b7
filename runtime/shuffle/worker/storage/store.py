"""The data of a worker: its jobs and their shuffles, and the memory and the disks that they share."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import resource
import shutil
import threading
from dataclasses import dataclass

from sluice.runtime.shuffle.control_plane import JobReport
from sluice.runtime.shuffle.data_plane import (
    KEY_BYTES,
    DiskFailed,
    JobNotAllowed,
    MapUnknown,
    QuotaExceeded,
    SegmentChecks,
    ShuffleError,
)
from sluice.runtime.shuffle.worker.config import WorkerConfig
from sluice.runtime.shuffle.worker.storage.at_rest import SegmentCipher
from sluice.runtime.shuffle.worker.storage.budget import SHUFFLE_BYTES, SHUFFLE_FILES, Account, Budget, Holding
from sluice.runtime.shuffle.worker.storage.disks import Disks
from sluice.runtime.shuffle.worker.storage.job_counters import JobCounters
from sluice.runtime.shuffle.worker.storage.shuffle_data import ShuffleData
from sluice.runtime.shuffle.worker.storage.slab_pool import SlabPool
from sluice.runtime.shuffle.worker.storage.spare_files import SpareFiles, remove_left_over

_LOG = logging.getLogger(__name__)

OTHER_FILES = 128
"""The number of open files that are reserved for anything but shuffles and connections."""
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_SHUFFLE = re.compile(r"0|[1-9][0-9]{0,9}")
_IDLE_SECONDS = 0.02
_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class _Shuffle:
    data: ShuffleData
    files: Holding
    checks: SegmentChecks | None = None

    def remove(self) -> None:
        self.data.remove()
        self.files.close()


class Job:
    """One job's data on this worker. ``key`` is None after a recovery, until the job is allowed again."""

    def __init__(self, job_id: str, store: ShuffleStore) -> None:
        self.job_id = job_id
        self.key: bytes | None = None
        self.counters = JobCounters()
        self.metadata = Account(store.metadata, job_id, store.config.job_quota_bytes)
        """The memory of its metadata (used) and its data (stored)."""
        self.connections = Account(store.connections, job_id)
        """The memory of its connections and reads."""
        self.places = Account(store.places, job_id)
        """The number of its connections."""
        self._files = Account(store.files, job_id)
        self._store = store
        self._lock = threading.Lock()
        self._shuffles: dict[int, _Shuffle] = {}
        self._released = False
        self._expected: set[str] = set()

    def expect(self, worker: str) -> None:
        """Let a worker hand over its data of this job."""
        with self._lock:
            self._expected.add(worker)

    def check_expected(self, worker: str) -> None:
        """Raise :class:`JobNotAllowed` unless ``worker`` may hand over its data of this job."""
        with self._lock:
            if worker not in self._expected:
                raise JobNotAllowed(f"worker {worker} is not expected to hand over job {self.job_id}")

    def shuffle(self, number: int, *, create: bool) -> tuple[ShuffleData, SegmentChecks]:
        """Return the shuffle ``number`` and its check values.

        Raises:
            MapUnknown: the shuffle does not exist, and ``create`` is not set.
            JobNotAllowed: the job was released.
            QuotaExceeded: the job has too many shuffles.
        """
        with self._lock:
            if self._released or self.key is None:
                raise JobNotAllowed(f"job {self.job_id} is not served here any more")
            found = self._shuffles.get(number)
            if found is None:
                if not create:
                    raise MapUnknown(f"shuffle {number} is unknown here")
                found = self._new_shuffle(number)
            if found.checks is None:
                found.checks = SegmentChecks(self.key, number)
            return found.data, found.checks

    def recovered(self, number: int) -> ShuffleData:
        """Return a shuffle to recover, which an earlier process left on disk."""
        if number not in self._shuffles:
            holding, files = self.metadata.holding(), self._files.holding()
            holding.charge(SHUFFLE_BYTES)
            files.charge(SHUFFLE_FILES)
            self._put(number, holding, files)
        return self._shuffles[number].data

    def _new_shuffle(self, number: int) -> _Shuffle:
        holding, files = self.metadata.holding(), self._files.holding()
        holding.take(SHUFFLE_BYTES)
        try:
            files.take(SHUFFLE_FILES)
        except QuotaExceeded:
            holding.close()
            raise
        return self._put(number, holding, files)

    def _put(self, number: int, holding: Holding, files: Holding) -> _Shuffle:
        data = self._store.new_shuffle(self.job_id, number, holding)
        put = self._shuffles[number] = _Shuffle(data, files)
        return put

    def shuffles(self) -> list[ShuffleData]:
        """Return all shuffles of the job."""
        with self._lock:
            return [each.data for each in self._shuffles.values()]

    def kept(self) -> tuple[int, ...]:
        """Return the numbers of the shuffles with any data or open maps."""
        with self._lock:
            every = [(number, each.data) for number, each in self._shuffles.items()]
        return tuple(
            sorted(number for number, data in every if data.memory_bytes + data.disk_bytes or data.open_maps())
        )

    def release_shuffle(self, number: int) -> None:
        """Remove one shuffle. An unknown shuffle is no error."""
        with self._lock:
            found = self._shuffles.pop(number, None)
        if found is not None:
            found.remove()

    def release(self) -> None:
        """Remove all shuffles, and accept no new ones."""
        with self._lock:
            self._released = True
            every, self._shuffles = list(self._shuffles.values()), {}
        for each in every:
            each.remove()

    def report(self) -> JobReport:
        """Return the current size of the job, and its counters since the worker started."""
        kept = sum(data.memory_bytes + data.disk_bytes for data in self.shuffles())
        return self.counters.report(self.job_id, kept + self.metadata.used)


class ShuffleStore:
    """All jobs of a worker.

    Two threads of the store write data out. One does so when memory is short; the other when a shuffle has enough data
    for a run, so that a commit has little left to wait for.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.pool = SlabPool(config.memory_bytes, config.high_watermark, config.low_watermark)
        remedy = "release shuffles, or raise shuffle.metadata_mb"
        self.metadata = Budget("memory for metadata", config.metadata_bytes // 2, remedy)
        self.connections = Budget(
            "memory for connections and reads",
            config.metadata_bytes // 2,
            "ask for less at a time, or raise shuffle.metadata_mb",
        )
        self.places = Budget("connections", config.max_connections, "use fewer, or raise shuffle.max_connections")
        self.files = Budget("open files", _files_for_shuffles(config), "raise the limit of open files (ulimit -n)")
        self.disks = Disks(config.directories, config.reserved_disk_bytes, config.disk_retry_seconds)
        self._spares = SpareFiles(config.spare_bytes)
        self.draining = False
        self.written_bytes = 0
        self.spilled_bytes = 0
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._stopping = threading.Event()
        self._spiller = threading.Thread(target=self._spill_loop, name="shuffle-spill", daemon=True)
        self._ripe: queue.SimpleQueue[ShuffleData | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="shuffle-write", daemon=True)

    def start(self) -> None:
        """Recover what an earlier process left, and start the threads."""
        self._recover()
        self._spiller.start()
        self._writer.start()

    def stop(self) -> None:
        """Stop the threads. Data on disk stays there."""
        self._stopping.set()
        self._ripe.put(None)
        self.pool.stop()
        self._spiller.join()
        self._writer.join()
        self._spares.drop()

    def allow_job(self, job_id: str, key: bytes) -> None:
        """Serve a job from now on. Its recovered data becomes readable.

        Raises:
            ShuffleError: the id or the key is malformed, or the job is served with another key.
        """
        if not _JOB_ID.fullmatch(job_id) or len(key) != KEY_BYTES:
            raise ShuffleError(f"{job_id[:80]!r} is not a job id, or its key does not have {KEY_BYTES} bytes")
        with self._lock:
            job = self._jobs.setdefault(job_id, Job(job_id, self))
            if job.key not in {None, key}:
                raise ShuffleError(f"job {job_id} is served with another key already", "release the job first")
            job.key = key

    def job(self, job_id: str) -> Job:
        """Return a job that is served here; raises :class:`JobNotAllowed`."""
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None or job.key is None:
            raise JobNotAllowed(f"job {job_id} is not served here")
        return job

    def jobs(self) -> list[Job]:
        """Return all jobs, including recovered jobs that are not served yet."""
        with self._lock:
            return list(self._jobs.values())

    def release_job(self, job_id: str) -> None:
        """Remove a job and all its data. An unknown job is no error."""
        with self._lock:
            job = self._jobs.pop(job_id, None)
        if job is not None:
            job.release()
            for disk in self.disks.all:
                shutil.rmtree(disk.path / job_id, ignore_errors=True)
            self._spares.drop(job_id=job_id)  # last: without the folders, a concurrent release adds no spare files

    def new_shuffle(self, job_id: str, number: int, holding: Holding) -> ShuffleData:
        """Return an empty shuffle that is charged to ``holding``."""
        name, secret = f"{job_id}/{number}", self.config.at_rest_secret
        cipher = SegmentCipher(secret, name) if secret else None
        config = self.config
        return ShuffleData(
            name,
            self.disks,
            self.pool,
            config.layout,
            self._written,
            policy=config.policy,
            cipher=cipher,
            ripe_bytes=int(config.run_share * self.pool.capacity_bytes),
            on_ripe=self._ripe.put,
            spares=self._spares,
            holding=holding,
        )

    def _written(self, size: int) -> None:
        with self._lock:
            self.written_bytes += size

    def _recover(self) -> None:
        """Recover all shuffles in ``<disk>/<job>/<shuffle>``."""
        found: dict[tuple[str, int], ShuffleData] = {}
        for disk in self.disks.all:
            for job_directory in sorted(disk.path.iterdir()):
                if not _JOB_ID.fullmatch(job_directory.name):
                    continue
                remove_left_over(job_directory)
                for directory in sorted(job_directory.iterdir()):
                    if not _SHUFFLE.fullmatch(directory.name):
                        continue
                    place = job_directory.name, int(directory.name)
                    if place not in found:
                        job = self._jobs.setdefault(place[0], Job(place[0], self))
                        found[place] = job.recovered(place[1])
                    try:
                        found[place].recover(disk, directory)
                    except (OSError, ShuffleError) as error:
                        _LOG.error("cannot recover %s: %s", directory, error)
                with contextlib.suppress(OSError):  # raised if it is not empty
                    job_directory.rmdir()
        for (job_id, number), data in found.items():
            maps = data.finish_recovery()
            _LOG.info("recovered shuffle %d of job %s: %d maps, %d bytes", number, job_id, maps, data.disk_bytes)

    def _write_loop(self) -> None:
        """Write out shuffles that have enough data for a run, while they receive more."""
        while (data := self._ripe.get()) is not None and not self._stopping.is_set():
            try:
                data.flush()
            except ShuffleError as error:
                _LOG.warning("%s is not written out yet: %s", data.name, error)
            except Exception:  # noqa: BLE001  # the loop must go on: no other thread does this
                _LOG.exception("%s is not written out yet", data.name)

    def _spill_loop(self) -> None:
        while not self._stopping.is_set():
            self.pool.pressed.wait()
            try:
                written = self._spill_largest()
            except ShuffleError as error:
                _LOG.error("memory is short and nothing can be written out: %s", error)
                self.pool.fail(error)
                self._stopping.wait(_RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001  # the loop must go on, or writers would wait for memory forever
                _LOG.exception("memory is short and nothing can be written out")
                self.pool.fail(DiskFailed(f"nothing can be written out: {type(error).__name__}"))
                self._stopping.wait(_RETRY_SECONDS)
            else:
                self.pool.fail(None)
                if not written:
                    self._stopping.wait(_IDLE_SECONDS)

    def _spill_largest(self) -> int:
        """Write out the shuffle with the most data in memory; returns the bytes written."""
        candidates = [(job, data) for job in self.jobs() for data in job.shuffles() if data.memory_bytes]
        largest = max(candidates, key=lambda each: each[1].memory_bytes, default=None)
        if largest is None:
            return 0
        job, data = largest
        written = data.spill()
        job.counters.spilled(written)
        with self._lock:
            self.spilled_bytes += written
        return written


def _files_for_shuffles(config: WorkerConfig) -> int:
    """Return how many of the process's open files are for shuffles."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = 3 * config.max_connections  # each has its socket, a duplicate of it, and an eventfd
    return max(limit - connections - OTHER_FILES, limit // 4)
