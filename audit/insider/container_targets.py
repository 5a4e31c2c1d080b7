"""Targets in the containers that run jobs, and listeners of other containers that they can reach."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from sluice.audit.containers import Container, listeners_of, sharing_run
from sluice.audit.insider.live_targets import start_ticks
from sluice.audit.insider.payload import Target, load
from sluice.audit.insider.surroundings import Surroundings
from sluice.audit.insider.targets import MAX_TARGETS, MAX_TARGETS_OF_A_KIND, directories, files, machine
from sluice.audit.model import Listener
from sluice.audit.network import in_network_of

PROC = Path("/proc")
_RUNS_JOBS = "taskmanager"


def runners_of(containers: Sequence[Container]) -> tuple[Container, ...]:
    """The containers that run jobs: those with a TaskManager's identity."""
    return tuple(each for each in containers if (each.files.pki / "identities" / _RUNS_JOBS).is_dir())


def container_targets(containers: Sequence[Container], victim: str) -> tuple[Target, ...]:
    """Targets that a job in the TaskManagers' ``containers`` must not reach; ``victim`` is the other job, or empty.

    Raises:
        AuditError: a container's network cannot be entered.
    """
    load()
    of_kind: dict[str, list[list[Target]]] = defaultdict(list)
    for container in runners_of(containers):
        mine: dict[str, list[Target]] = defaultdict(list)
        for target in _in_container(container, victim):
            mine[target.kind].append(target)
        for kind, targets in mine.items():
            of_kind[kind].append(targets)
    found = list(_ports(containers))
    for several in of_kind.values():
        # Round-robin, so that attempts cover every container.
        for rank in range(max(map(len, several))):
            found += [targets[rank] for targets in several if rank < len(targets)]
    return tuple(dict.fromkeys(found))[:MAX_TARGETS]


def _in_container(container: Container, victim: str) -> Iterator[Target]:
    around = Surroundings.of_container(container)
    found = [*files(around, victim), *directories(around), *machine(around), *_processes(container, victim)]
    found += _sockets(around)
    for target in found:
        name = f"{target.name or target.kind} in {container.service}"
        named = target.kind not in {"directory", "unix socket", "namespace"}  # attempts use these names
        yield dataclasses.replace(target, name=name) if named else target


def _sockets(around: Surroundings) -> Iterator[Target]:
    with contextlib.suppress(OSError):
        for path in sorted(around.home.sockets.iterdir()):
            if path.is_socket():
                yield Target("unix socket", around.inside(path), path.stem)


def _processes(container: Container, victim: str) -> Iterator[Target]:
    """The processes of a container, by their numbers in it."""
    namespace = (PROC / str(container.pid) / "ns" / "pid").stat().st_ino
    for entry in sorted((path for path in PROC.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError, ValueError):
            if (entry / "ns" / "pid").stat().st_ino != namespace:
                continue
            command = (entry / "cmdline").read_bytes()[: 1 << 14].replace(b"\0", b" ").decode(errors="replace")
            numbers = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("NSpid:"))
            kind = "process of another job" if victim and victim in command else "process of the cluster"
            yield Target(kind, numbers.split()[-1], command.split(" ")[0][-40:], start_ticks(int(entry.name)))


def _ports(containers: Sequence[Container]) -> Iterator[Target]:
    """Listeners by the names of their services, which containers of the project resolve."""
    for container in containers:
        beside = sharing_run(container, containers)
        listeners: tuple[Listener, ...] = in_network_of(container.pid, lambda c=container, b=beside: listeners_of(c, b))  # type: ignore[misc]
        for each in listeners[:MAX_TARGETS_OF_A_KIND]:
            if each.port and not all(host.startswith("127.") for host in each.bound or (each.host,)):
                yield Target("port", f"{container.service}:{each.port}", each.name.partition("/")[2])
