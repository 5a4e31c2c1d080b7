"""The launcher's record of the processes it started, so that a later command can find or end them.

A pid alone is ambiguous (the kernel reuses pids): a record matches by pid *and* start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil

from sluice.cli.errors import EXIT_NO, CommandError
from sluice.core import Home, boot_id, held_alone, is_same_process, uptime_at_start, write_atomic

STOP_GRACE_SECONDS = 5.0
"""How long survivors of an earlier launcher get between SIGTERM and SIGKILL."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process: its name in the cluster, pid, and start time (seconds since the epoch).

    ``boot`` and ``uptime`` are the machine's boot and how long it had been up at the start (seconds).
    """

    name: str
    pid: int
    started_at: float
    boot: str = ""
    uptime: float = 0.0

    @classmethod
    def of(cls, name: str, pid: int) -> ProcessRecord:
        """A record of the running process ``pid``."""
        process = psutil.Process(pid)
        return cls(name, pid, process.create_time(), boot_id(), uptime_at_start(process))

    def find(self) -> psutil.Process | None:
        """The process, when it is still the same one and alive."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            same = is_same_process(process, self.started_at, self.boot, self.uptime)
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


class ClusterRecord(msgspec.Struct, frozen=True):
    """A launcher and its children; ``ready`` once the cluster accepts jobs."""

    launcher: ProcessRecord
    children: tuple[ProcessRecord, ...] = ()
    ready: bool = False
    started_at: float = 0.0
    ready_at: float = 0.0


def record_path(home: Home) -> Path:
    """The record of ``home``'s cluster."""
    return home.run / "cluster.json"


def write_record(home: Home, record: ClusterRecord) -> None:
    """Replace the record."""
    write_atomic(record_path(home), msgspec.json.encode(record), mode=0o600)


def read_record(home: Home) -> ClusterRecord | None:
    """The record, or None when no cluster was started or it stopped normally."""
    try:
        return msgspec.json.decode(record_path(home).read_bytes(), type=ClusterRecord)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CommandError(f"{record_path(home)} is damaged", "stop the processes by hand and remove it") from error


def never() -> bool:
    """False: for a cluster on other machines, where a stop cannot be detected."""
    return False


def watch_for_stop(home: Home) -> Callable[[], bool]:
    """A function that returns whether the cluster that runs in ``home`` now has been stopped since.

    Processes started one by one have no record; for them it is :func:`never`.
    """
    if read_record(home) is None:
        return never

    def stopped() -> bool:
        record = read_record(home)
        return record is None or record.launcher.find() is None

    return stopped


@contextlib.contextmanager
def launcher_lock(home: Home) -> Iterator[None]:
    """Hold the one launcher's lock of ``home``; the kernel releases it however the process ends."""
    with held_alone(home.run / "launcher.lock") as alone:
        if not alone:
            raise CommandError(
                f"a cluster is already running in {home.root}",
                "see `sluice status`, stop it with `sluice down`",
                exit_code=EXIT_NO,
            )
        yield


def end_survivors(record: ClusterRecord) -> int:
    """End processes that an earlier launcher left running, with all descendants; returns their number."""
    victims: dict[int, psutil.Process] = {}
    for entry in (record.launcher, *record.children):
        process = entry.find()
        if process is None or process.pid == os.getpid():
            continue
        victims[process.pid] = process
        with contextlib.suppress(psutil.Error):
            victims.update({child.pid: child for child in process.children(recursive=True)})
    for process in victims.values():
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(list(victims.values()), timeout=STOP_GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=STOP_GRACE_SECONDS)
    return len(victims)
