"""What exists outside of the job, so that attempts aim at something real: a home's paths, sockets, ports, processes.

Only names and numbers are told to the job, never what is in a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from sluice.audit.discovery import declared, find, processes_of
from sluice.audit.errors import AuditError
from sluice.audit.insider.payload import PATTERNS, Target, load
from sluice.audit.model import Kind, Listener
from sluice.audit.wire import speaks_tls
from sluice.core import Home

MAX_TARGETS_OF_A_KIND = 16
MAX_TARGETS = 600


def targets_of(home: Home, victim: str, own: str = "") -> tuple[Target, ...]:
    """Everything of the cluster in ``home`` that the job ``own`` must not reach; ``victim`` is the other job."""
    load()
    found = [
        *_files(home, victim, own),
        *_listeners(declared(home)),
        *_listeners_of_jobs(home, victim),
        *_processes(home, victim),
    ]
    return tuple(found[:MAX_TARGETS])


def _files(home: Home, victim: str, own: str) -> Iterator[Target]:
    for kind, patterns in PATTERNS.items():
        paths: dict[Path, None] = {}
        for pattern in patterns:
            with contextlib.suppress(OSError):
                for path in sorted(home.root.glob(pattern)):
                    if own not in path.parts[1:] or not own:
                        paths[path] = None
        # Those of the victim first: they are there for the whole time.
        ordered = sorted(paths, key=lambda path: not victim or victim not in path.parts)
        for path in ordered[:MAX_TARGETS_OF_A_KIND]:
            yield Target(kind, str(path))


def _listeners(listeners: Iterable[Listener]) -> Iterator[Target]:
    for each in listeners:
        if each.path:
            yield Target("unix socket", each.path, each.name)
        else:
            yield Target("port", f"{each.host}:{each.port}", each.name)


def _listeners_of_jobs(home: Home, victim: str) -> Iterator[Target]:
    """Those of the victim's JVMs and its driver's agent, which no registry names."""
    with contextlib.suppress(AuditError):
        for each in find(home, speaks_tls).listeners:
            if each.path and each.name.startswith("bridge"):
                yield Target("socket of another job", each.path, each.name)
            elif each.port and victim and each.job_id == victim and each.kind in {Kind.MUTUAL, Kind.LOCAL}:
                yield Target("port of another job", f"{each.host}:{each.port}", each.name)


def _processes(home: Home, victim: str) -> Iterator[Target]:
    for name, process in processes_of(home):
        with contextlib.suppress(psutil.Error):
            of_victim = bool(victim) and any(victim in argument for argument in process.cmdline())
            kind = "process of another job" if of_victim else "process of the cluster"
            yield Target(kind, str(process.pid), name or process.name())
