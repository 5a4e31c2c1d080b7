"""Event logs of drivers that have ended: read as bytes, whatever lies in their place, and not kept for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.runtime.messages import MAX_EVENT_LOG_CHUNK_BYTES, EventLogChunk
from sluice.runtime.spark.driver.event_log import CUT, EVENT_LOG
from sluice.runtime.taskmanager.kept_logs import KEPT_EVENT_LOGS, trim_logs
from sluice.runtime.taskmanager.processes.driver import clean_driver_directory, read_event_log

NONE = EventLogChunk(data=b"", end=True)


def test_a_log_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / EVENT_LOG).write_bytes(b"0123456789")
    assert read_event_log(tmp_path, 0, 4) == EventLogChunk(data=b"0123", end=False)
    (tmp_path / CUT).touch()
    assert read_event_log(tmp_path, 4, 100) == EventLogChunk(data=b"456789", end=True, cut=True)
    assert read_event_log(tmp_path, 10, 100).data == b""


def test_an_event_log_piece_is_bounded(tmp_path: Path) -> None:
    (tmp_path / EVENT_LOG).write_bytes(b"x" * (MAX_EVENT_LOG_CHUNK_BYTES + 5))
    assert len(read_event_log(tmp_path, 0, 1 << 40).data) == MAX_EVENT_LOG_CHUNK_BYTES


@pytest.mark.parametrize("kind", ["nothing", "link", "fifo", "directory", "second name"])
def test_anything_but_a_regular_file_is_not_read_as_an_event_log(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not for them")
    driver = tmp_path / "driver-1"
    driver.mkdir()
    match kind:
        case "link":
            (driver / EVENT_LOG).symlink_to(secret)
        case "fifo":
            os.mkfifo(driver / EVENT_LOG)
        case "directory":
            (driver / EVENT_LOG).mkdir()
        case "second name":
            os.link(secret, driver / EVENT_LOG)
    assert read_event_log(driver, 0, 100) == NONE


def test_the_event_log_is_kept_when_a_driver_directory_is_cleaned(tmp_path: Path) -> None:
    for name in (EVENT_LOG, CUT, "driver.stdout", "driver.json"):
        (tmp_path / name).write_bytes(b"x")
    clean_driver_directory(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {EVENT_LOG, CUT, "driver.stdout"}


def test_only_event_logs_of_the_latest_jobs_and_drivers_are_kept(tmp_path: Path) -> None:
    jobs = [tmp_path / f"{number:032x}" for number in range(KEPT_EVENT_LOGS + 3)]
    for at, job in enumerate(jobs):
        for attempt in (9, 10):
            (job / f"driver-{attempt}").mkdir(parents=True)
            (job / f"driver-{attempt}" / EVENT_LOG).write_bytes(b"x")
            (job / f"driver-{attempt}" / "driver.stdout").write_bytes(b"x")
        os.utime(job, (at, at))
    trim_logs(tmp_path, frozenset())
    left = {path.parent.parent.name: path.parent.name for path in tmp_path.rglob(EVENT_LOG)}
    assert left == {job.name: "driver-10" for job in jobs[3:]}
    assert len(list(tmp_path.rglob("driver.stdout"))) == 2 * len(jobs), "logs stay"
