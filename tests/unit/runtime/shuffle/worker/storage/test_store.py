"""What a worker keeps of its jobs, and what it leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sluice.runtime.shuffle.data_plane.frames import SEGMENT_ENTRY
from sluice.runtime.shuffle.worker.config import WorkerConfig
from sluice.runtime.shuffle.worker.storage.shuffle_data import ShuffleData
from sluice.runtime.shuffle.worker.storage.store import ShuffleStore

JOB, OTHER = "a" * 32, "b" * 32
KEY = bytes(8)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def store(disk: Path) -> Iterator[ShuffleStore]:
    made = ShuffleStore(WorkerConfig((disk,), memory_bytes=64 << 20, reserved_disk_bytes=0))
    made.start()
    yield made
    made.stop()


def write(store: ShuffleStore, job_id: str, shuffle: int, size: int = 1000) -> None:
    """Write a shuffle of one map with one segment."""
    store.allow_job(job_id, KEY)
    data, _ = store.job(job_id).shuffle(shuffle, create=True)
    lease = store.pool.lease(job_id, [size])
    store.pool.received(lease)
    data.add(1, [0], np.array([(0, 0, size, 0)], SEGMENT_ENTRY).tobytes(), lease, write_through=False)
    data.commit(1, 1, size)


def files(disk: Path) -> set[str]:
    return {str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file()}


def test_the_file_of_a_released_shuffle_is_spare_for_its_job_and_removed_with_it(
    store: ShuffleStore, disk: Path
) -> None:
    write(store, JOB, 1)
    write(store, OTHER, 1)
    store.job(JOB).release_shuffle(1)
    assert files(disk) == {f"{JOB}/spare/0", f"{OTHER}/1/data", f"{OTHER}/1/index"}

    write(store, OTHER, 2)
    assert f"{JOB}/spare/0" in files(disk)
    write(store, JOB, 2)
    assert f"{JOB}/spare/0" not in files(disk)

    store.job(JOB).release_shuffle(2)
    store.release_job(JOB)
    assert {name.partition("/")[0] for name in files(disk)} == {OTHER}
    assert not (disk / JOB).exists()


def test_spare_files_left_by_a_crash_are_removed_at_the_next_start(store: ShuffleStore, disk: Path) -> None:
    write(store, JOB, 1)
    write(store, JOB, 2)
    store.job(JOB).release_shuffle(1)
    (disk / OTHER / "spare").mkdir(parents=True)
    (disk / OTHER / "spare" / "0").write_bytes(b"of a process that was killed")

    again = ShuffleStore(store.config)
    again.start()
    try:
        assert files(disk) == {f"{JOB}/2/data", f"{JOB}/2/index"}
        assert not (disk / OTHER).exists()
        assert [job.job_id for job in again.jobs()] == [JOB]
    finally:
        again.stop()


def test_a_stop_removes_spare_files_and_keeps_shuffle_data(store: ShuffleStore, disk: Path) -> None:
    write(store, JOB, 1)
    write(store, JOB, 2)
    store.job(JOB).release_shuffle(1)
    store.stop()
    assert files(disk) == {f"{JOB}/2/data", f"{JOB}/2/index"}


def test_a_failed_spill_is_retried(store: ShuffleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.runtime.shuffle.worker.storage.store._RETRY_SECONDS", 0.01)
    tried, done = threading.Semaphore(0), ShuffleData.spill

    def fail(_: ShuffleData) -> int:
        tried.release()
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(ShuffleData, "spill", fail)
    store.allow_job(JOB, KEY)
    data, _ = store.job(JOB).shuffle(1, create=True)
    lease = store.pool.lease(JOB, [1000])
    store.pool.received(lease)
    data.add(1, [0], np.array([(0, 0, 1000, 0)], SEGMENT_ENTRY).tobytes(), lease, write_through=False)
    store.pool.pressed.set()
    for _ in range(3):
        assert tried.acquire(timeout=20)

    def spill(shuffle: ShuffleData) -> int:
        written = done(shuffle)
        tried.release()
        return written

    monkeypatch.setattr(ShuffleData, "spill", spill)
    while data.memory_bytes:
        assert tried.acquire(timeout=20)
