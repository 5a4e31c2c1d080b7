"""The launcher's records: processes match by pid and start time, and only one launcher runs at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from sluice.cli.cluster.commands import _up_detached
from sluice.cli.cluster.records import (
    ClusterRecord,
    ProcessRecord,
    end_survivors,
    launcher_lock,
    never,
    read_record,
    record_path,
    watch_for_stop,
    write_record,
)
from sluice.cli.errors import CommandError
from sluice.core.home import Home

SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); \
print('up', flush=True); time.sleep(600)"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home").create()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child of its own."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with process:
        yield process
        process.kill()


def test_a_cluster_record_round_trips_and_is_readable_by_its_owner_only(home: Home) -> None:
    record = ClusterRecord(ProcessRecord.of("launcher", os.getpid()), ready=True, ready_at=2.0)
    write_record(home, record)
    assert read_record(home) == record
    assert record_path(home).stat().st_mode & 0o777 == 0o600


def test_a_missing_record_is_no_cluster_and_a_damaged_one_an_error(home: Home) -> None:
    assert read_record(home) is None
    record_path(home).write_text("{")
    with pytest.raises(CommandError, match="damaged"):
        read_record(home)


def test_a_reused_pid_is_not_the_same_process() -> None:
    current = ProcessRecord.of("me", os.getpid())
    assert current.find() is not None
    assert ProcessRecord("me", os.getpid(), current.started_at - 100).find() is None


def test_surviving_processes_are_ended_with_their_descendants(sleeper: subprocess.Popen[bytes]) -> None:
    entry = ProcessRecord.of("taskmanager-1", sleeper.pid)
    gone = ProcessRecord("launcher", sleeper.pid, entry.started_at - 100)
    assert end_survivors(ClusterRecord(gone, (entry,))) == 2
    assert entry.find() is None


def test_only_one_launcher_holds_the_lock_at_a_time(home: Home) -> None:
    with launcher_lock(home), pytest.raises(CommandError, match="already running"), launcher_lock(home):
        pass
    with launcher_lock(home):
        pass


class TestStopped:
    """Whether a cluster that ran has been stopped; one that never ran is not reported as stopped."""

    def test_a_home_without_a_record_is_never_reported_as_stopped(self, home: Home) -> None:
        assert watch_for_stop(home) is never
        assert not never()

    def test_a_cluster_counts_as_stopped_when_its_record_is_removed(self, home: Home) -> None:
        write_record(home, ClusterRecord(ProcessRecord.of("launcher", os.getpid())))
        stopped = watch_for_stop(home)
        assert not stopped()
        record_path(home).unlink()
        assert stopped()
        write_record(home, ClusterRecord(ProcessRecord.of("launcher", os.getpid())))
        assert not stopped()

    def test_a_cluster_counts_as_stopped_when_its_launcher_has_died(
        self, home: Home, sleeper: subprocess.Popen[bytes]
    ) -> None:
        write_record(home, ClusterRecord(ProcessRecord.of("launcher", sleeper.pid)))
        stopped = watch_for_stop(home)
        assert not stopped()
        sleeper.kill()
        sleeper.wait()
        assert stopped()


def test_a_clock_that_is_set_hides_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    current = ProcessRecord.of("me", os.getpid())
    booted = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600)
    assert current.find() is not None


def test_a_process_of_another_boot_is_not_the_same() -> None:
    current = ProcessRecord.of("me", os.getpid())
    assert msgspec.structs.replace(current, boot="another").find() is None


def test_a_record_of_an_earlier_release_is_compared_by_its_start_time() -> None:
    current = ProcessRecord.of("me", os.getpid())
    assert ProcessRecord("me", os.getpid(), current.started_at).find() is not None


def test_a_second_detached_start_keeps_the_log_of_the_first(home: Home) -> None:
    home.create()
    log = home.logs / "launcher.log"
    log.write_text("taskmanager-1 ended\n")
    with launcher_lock(home), pytest.raises(CommandError, match="already running"):
        _up_detached(home, as_json=False)
    assert log.read_text() == "taskmanager-1 ended\n"
