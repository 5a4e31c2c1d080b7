"""Reports of what processes have in memory: written, read, bounded, and ignored for dead processes."""

from __future__ import annotations

import datetime as dt
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.core.errors import StoreError
from sluice.pki.trust.reports import (
    DIRECTORY,
    MAX_REPORT_BYTES,
    MAX_REPORTS,
    PLACED_REPORT,
    TrustReport,
    is_running,
    place_reports,
    read_reports,
    remove_report,
    write_report,
)

STARTED = 1732150000.12
DOCUMENT: dict[str, Any] = {
    "pid": 123,
    "started": STARTED,
    "identity": "spiffe://sluice.local/jobmanager/jm-1",
    "program": "jobmanager",
    "leaf": "0" * 64,
    "issuer": "a1b2",
    "anchors": ["a1b2", "c3d4"],
    "crls": {"a1b2": 7},
    "loaded_at": "2026-11-21T05:00:00Z",
}


def running(pid: int, started: float | None, _: float) -> bool:
    """Return whether a process runs: only process 123 does, since ``STARTED``."""
    return pid == 123 and (started is None or abs(started - STARTED) <= 1)


def put(directory: Path, document: object, name: str = "123.json") -> Path:
    place = directory / DIRECTORY
    place.mkdir(exist_ok=True)
    path = place / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_written_report_is_read_back_until_it_is_removed(tmp_path: Path) -> None:
    report = TrustReport(
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        identity="spiffe://sluice.local/ca/ca-1",
        program="ca",
        leaf="f" * 64,
        issuer="a1",
        anchors=("a1", "b2"),
        crls={"a1": 1},
        loaded_at=dt.datetime(2026, 11, 21, 5, tzinfo=dt.UTC),
    )
    write_report(tmp_path, report)
    path = tmp_path / DIRECTORY / f"{os.getpid()}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_reports(tmp_path) == ([report], [])
    remove_report(tmp_path, os.getpid())
    assert read_reports(tmp_path) == ([], [])
    remove_report(tmp_path, os.getpid())


def test_report_of_another_program_is_read(tmp_path: Path) -> None:
    put(tmp_path, DOCUMENT)
    ((report,), unreadable) = read_reports(tmp_path, alive=running)
    assert not unreadable
    assert (report.pid, report.anchors, report.crls) == (123, ("a1b2", "c3d4"), {"a1b2": 7})


@pytest.mark.parametrize(
    ("document", "name"),
    [
        pytest.param({**DOCUMENT, "pid": 124}, "124.json", id="process is gone"),
        pytest.param({**DOCUMENT, "started": STARTED - 60}, "123.json", id="pid was given to another process"),
        pytest.param("not json", "124.json", id="damaged, and the process is gone"),
        pytest.param({**DOCUMENT, "pid": 123}, "124.json", id="of another process, and this one is gone"),
    ],
)
def test_the_report_of_an_ended_process_is_removed(document: object, name: str, tmp_path: Path) -> None:
    path = put(tmp_path, document, name)
    assert read_reports(tmp_path, alive=running) == ([], [])
    assert not path.exists()


@pytest.mark.parametrize(
    "document",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut off"),
        pytest.param("[" * 100_000, id="deeply nested"),
        pytest.param({**DOCUMENT, "more": 1}, id="unknown field"),
        pytest.param({key: value for key, value in DOCUMENT.items() if key != "anchors"}, id="missing field"),
        pytest.param({**DOCUMENT, "pid": 124}, id="of another process"),
        pytest.param({**DOCUMENT, "anchors": ["a1"] * 33}, id="too many anchors"),
        pytest.param({**DOCUMENT, "anchors": ["A1"]}, id="not a key identifier"),
        pytest.param({**DOCUMENT, "crls": {"a1": -1}}, id="negative number"),
        pytest.param({**DOCUMENT, "leaf": "zz"}, id="not a digest"),
        pytest.param({**DOCUMENT, "loaded_at": "2026-11-21T05:00:00"}, id="time without zone"),
        pytest.param({**DOCUMENT, "identity": "x" * (MAX_REPORT_BYTES + 1)}, id="too large"),
    ],
)
def test_an_unreadable_report_of_a_running_process_is_reported_as_unreadable(document: object, tmp_path: Path) -> None:
    """It must count as lagging: a process whose report cannot be read may trust anything."""
    path = put(tmp_path, document)
    reports, (bad,) = read_reports(tmp_path, alive=running)
    assert not reports
    assert (bad.path, bad.pid) == (path, 123)
    assert bad.why
    assert path.exists()


def test_files_that_are_not_reports_are_left_alone(tmp_path: Path) -> None:
    paths = [put(tmp_path, "x", name) for name in (".123.json.ab.tmp", "0123.json", "note.txt", "a.json")]
    assert read_reports(tmp_path, alive=running) == ([], [])
    assert all(path.exists() for path in paths)
    assert read_reports(tmp_path / "nowhere") == ([], [])


def test_too_many_reports_in_one_directory_are_an_error(tmp_path: Path) -> None:
    for number in range(1, MAX_REPORTS + 2):
        put(tmp_path, "x", f"{number}.json")
    with pytest.raises(StoreError, match="more than"):
        read_reports(tmp_path, alive=running)


def test_a_process_counts_as_running_by_its_pid_and_start_time() -> None:
    started = psutil.Process().create_time()
    assert is_running(os.getpid(), started)
    assert is_running(os.getpid())
    assert not is_running(os.getpid(), started - 10, started - 5), "the pid was given to another process"
    assert is_running(os.getpid(), started - 10, started + 5), "it ran already: the clock was set meanwhile"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not is_running(child.pid)


def test_fifos_and_links_in_the_place_of_reports_are_not_read_or_followed(tmp_path: Path) -> None:
    document = put(tmp_path, DOCUMENT, "other")
    directory = tmp_path / "job"
    (directory / DIRECTORY).mkdir(parents=True)
    os.mkfifo(directory / DIRECTORY / "1.json")
    (directory / DIRECTORY / "2.json").symlink_to(document)
    (directory / DIRECTORY / "123.json").hardlink_to(document)
    found, unreadable = read_reports(directory, alive=running)
    assert found == []
    assert [each.pid for each in unreadable] == [123], "processes 1 and 2 are gone, and so are their reports"
    assert sorted(path.name for path in (directory / DIRECTORY).iterdir()) == ["123.json"]
    assert document.exists()


def test_reports_in_a_linked_directory_are_neither_read_nor_removed(tmp_path: Path) -> None:
    document = put(tmp_path, DOCUMENT, "7.json")
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / DIRECTORY).symlink_to(document.parent)
    with pytest.raises(StoreError):
        read_reports(directory, alive=running)
    assert document.exists()


IN_A_BOX = {**DOCUMENT, "pid": 2, "started": 5.0, "identity": "spiffe://sluice.local/job/j/driver", "program": "driver"}


@pytest.fixture
def boxed(tmp_path: Path) -> Path:
    """The report directory of this process as if sandboxed; its identity is in ``identity``."""
    reports = tmp_path / "reports"
    reports.mkdir()
    place_reports(tmp_path / "identity", os.getpid(), str(IN_A_BOX["identity"]), reports)
    return reports


def test_a_report_from_a_sandbox_is_read_with_the_pid_outside_the_sandbox(boxed: Path) -> None:
    identity = boxed.with_name("identity")
    assert read_reports(identity) == ([], []), "it has not told yet"
    (boxed / PLACED_REPORT).write_text(json.dumps(IN_A_BOX))
    ((report,), unreadable) = read_reports(identity)
    assert unreadable == []
    assert (report.pid, report.started) == (os.getpid(), psutil.Process().create_time())
    assert (report.identity, report.anchors) == (IN_A_BOX["identity"], ("a1b2", "c3d4"))


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda path: path.write_text(json.dumps({**IN_A_BOX, "identity": "spiffe://a/b"})), id="identity"),
        pytest.param(lambda path: path.write_text("x" * (MAX_REPORT_BYTES + 1)), id="too large"),
        pytest.param(lambda path: path.write_text("{"), id="damaged"),
        pytest.param(os.mkfifo, id="fifo"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="link"),
        pytest.param(Path.mkdir, id="directory"),
    ],
)
def test_an_unreadable_report_from_a_running_sandbox_is_reported_as_unreadable(
    boxed: Path, put: Callable[[Path], object]
) -> None:
    put(boxed / PLACED_REPORT)
    reports, (bad,) = read_reports(boxed.with_name("identity"))
    assert reports == []
    assert bad.pid == os.getpid()


def test_the_report_place_of_a_sandbox_is_removed_when_its_process_has_ended(boxed: Path) -> None:
    (boxed / PLACED_REPORT).write_text(json.dumps(IN_A_BOX))
    identity = boxed.with_name("identity")
    assert read_reports(identity, alive=lambda *_: False) == ([], [])
    assert list((identity / DIRECTORY).iterdir()) == []
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    place_reports(identity, child.pid, str(IN_A_BOX["identity"]), boxed)
    assert list((identity / DIRECTORY).iterdir()) == [], "it had ended before"
