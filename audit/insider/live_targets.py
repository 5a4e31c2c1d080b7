"""Processes of a cluster, and their listeners, as targets of the insider audit's job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from sluice.audit.discovery import declared, find, kernel_sockets, processes_of
from sluice.audit.insider.payload import Target
from sluice.audit.model import Listener
from sluice.audit.wire import speaks_tls
from sluice.core import EgressConfig, EgressMisconfigured, Home, egress_address

_START_TIME = 19
"""Field of ``/proc/PID/stat``, counted from the one behind the command's name (proc(5): 22)."""
_JVMS = frozenset({"driver", "executor", "py4j"})


def live_targets(home: Home, victim: str) -> Iterator[Target]:
    """All processes of the cluster in ``home``; those of the job ``victim`` have their own kinds."""
    processes = {process.pid: (name, process) for name, process in processes_of(home)}
    of_victim = _of_job([process for _, process in processes.values()], victim)
    for pid, (name, process) in processes.items():
        with contextlib.suppress(psutil.Error, OSError):
            kind = "process of another job" if pid in of_victim else "process of the cluster"
            yield Target(kind, str(pid), name or process.name(), start_ticks(pid))
    yield from _temporary_directories(processes[pid][1] for pid in of_victim if pid in processes)
    yield from _listeners(declared(home))
    with contextlib.suppress(EgressMisconfigured):
        host, port = egress_address(EgressConfig(), home)
        yield Target("port", f"{host}:{port}", "egress")
    for each in kernel_sockets(home)[0]:
        if each.pid in of_victim and each.path:
            yield Target("socket of another job", each.path, each.process)
    for listener in find(home, speaks_tls).listeners:
        # Named driver-PID-PORT, executor-PID-PORT, or py4j-PID.
        if listener.port and victim and (listener.job_id == victim or _pid_in(listener.name) in of_victim):
            yield Target("port of another job", f"{listener.host}:{listener.port}", listener.name)


def start_ticks(pid: int) -> str:
    """When a process began, in clock ticks since the machine started; raises OSError when there is none."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()[_START_TIME]


def _of_job(processes: Iterable[psutil.Process], job_id: str) -> frozenset[int]:
    """The processes of a job: those that name it in their command line or run in its directory, and descendants."""
    found: set[int] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if job_id and (any(job_id in each for each in process.cmdline()) or job_id in process.cwd()):
                found |= {process.pid, *(child.pid for child in process.children(recursive=True))}
    return frozenset(found)


def _temporary_directories(processes: Iterable[psutil.Process]) -> Iterator[Target]:
    found: dict[str, None] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found[process.environ().get("TMPDIR", "")] = None
    for directory in filter(None, found):
        with contextlib.suppress(OSError):
            status = Path(directory).stat()
            yield Target("job temporary directory", directory, mark=f"{status.st_dev}:{status.st_ino}")


def _listeners(listeners: Iterable[Listener]) -> Iterator[Target]:
    for each in listeners:
        if each.path:
            if Path(each.path).is_socket():
                yield Target("unix socket", each.path, each.name)
        else:
            yield Target("port", f"{each.host}:{each.port}", each.name)


def _pid_in(name: str) -> int:
    """The process in the name of a job's listener; 0 when there is none."""
    parts = name.split("-")
    return int(parts[1]) if len(parts) > 1 and parts[0] in _JVMS and parts[1].isdecimal() else 0
