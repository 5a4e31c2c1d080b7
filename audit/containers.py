"""The containers of a compose project, found with the docker command, and the listeners in each.

Every container is examined like a separate machine: its kernel tables, its registry, its files, and handshakes from
inside its network. This requires root on the host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from sluice.audit.discovery import declared, reconcile
from sluice.audit.errors import AuditError
from sluice.audit.model import Listener
from sluice.audit.proc_net import namespace_sockets
from sluice.audit.sockets import KernelSocket
from sluice.audit.wire import speaks_tls
from sluice.core import Home

DOCKER_SECONDS = 30.0
DEFAULT_HOME = "/var/lib/sluice"
_RESOLVER = "127.0.0.11"
"""Where Docker's own resolver listens in every container; no process inside has that socket."""
_DIRECTORY = "com.docker.compose.project.working_dir"
_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_HOST_NETWORK = "host"


class _State(msgspec.Struct, frozen=True):
    pid: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="Pid", default=0)


class _Config(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)
    environment: tuple[str, ...] | None = msgspec.field(name="Env", default=None)


class _HostConfig(msgspec.Struct, frozen=True):
    network_mode: str = msgspec.field(name="NetworkMode", default="")


class _Inspected(msgspec.Struct, frozen=True):
    """The used fields of ``docker inspect``."""

    name: str = msgspec.field(name="Name")
    state: _State = msgspec.field(name="State")
    config: _Config = msgspec.field(name="Config")
    host: _HostConfig = msgspec.field(name="HostConfig")


@dataclass(frozen=True, slots=True)
class Container:
    """A running container: its service, its first process on the host, and where its home is inside."""

    service: str
    project: str
    pid: int
    home: str = DEFAULT_HOME
    on_host_network: bool = False

    @property
    def root(self) -> Path:
        """The path of its file system on the host."""
        return Path("/proc", str(self.pid), "root")

    @property
    def files(self) -> Home:
        """The path of its home on the host."""
        return Home.at(self.root / self.home.lstrip("/"))


def containers_of(directory: Path, project: str = "") -> tuple[Container, ...]:
    """The running containers that were started from the compose file in ``directory``, by name.

    Raises:
        AuditError: none run, several projects run, or docker does not answer.
    """
    labels = [f"label={_DIRECTORY}={directory.resolve()}"] + ([f"label={_PROJECT}={project}"] if project else [])
    filters = [argument for label in labels for argument in ("--filter", label)]
    ids = _docker("ps", "--quiet", "--no-trunc", *filters).decode().split()
    if not ids:
        raise AuditError(f"no container runs from {directory}", "start them: docker compose up -d")
    found = decode_inspected(_docker("inspect", *ids))
    projects = sorted({each.project for each in found})
    if len(projects) > 1:
        raise AuditError(f"several projects run from {directory}: {', '.join(projects)}", "choose one: --project")
    return found


def decode_inspected(output: bytes) -> tuple[Container, ...]:
    """Running containers in the output of ``docker inspect``, by the name of their service and their own."""
    try:
        inspected = msgspec.json.decode(output, type=tuple[_Inspected, ...])
    except msgspec.MsgspecError as error:
        raise AuditError(f"docker inspect says something unknown: {error}", "is it a current docker?") from error
    running = sorted((each for each in inspected if each.state.pid), key=lambda each: each.name)
    services = [(each.config.labels or {}).get(_SERVICE, "") for each in running]
    return tuple(
        Container(
            # of a service that runs more than once, the containers' own names
            service=service if service and services.count(service) == 1 else each.name.lstrip("/"),
            project=(each.config.labels or {}).get(_PROJECT, ""),
            pid=each.state.pid,
            home=_home_of(each.config.environment or ()),
            on_host_network=each.host.network_mode == _HOST_NETWORK,
        )
        for each, service in zip(running, services, strict=True)
    )


def _home_of(environment: Sequence[str]) -> str:
    values = dict(entry.partition("=")[::2] for entry in environment)
    return values.get("SLUICE_HOME") or DEFAULT_HOME


def _docker(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, timeout=DOCKER_SECONDS, check=False)
    except FileNotFoundError as error:
        raise AuditError("there is no docker command here", "run the audit on the host of the containers") from error
    except subprocess.TimeoutExpired as error:
        raise AuditError("docker does not answer", "is its daemon running?") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise AuditError(f"docker {arguments[0]} failed: {said[-1] if said else done.returncode}", "run as root")
    return done.stdout


def sharing_run(container: Container, containers: Sequence[Container]) -> tuple[Container, ...]:
    """The other containers that share the announcement directory of ``container``."""
    return tuple(each for each in containers if each != container and _same(each.files.run, container.files.run))


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def listeners_of(container: Container, beside: Sequence[Container] = ()) -> tuple[Listener, ...]:
    """Everything that listens in ``container``; to be called in its network (``in_network_of``).

    ``beside``: a listener that ``container`` announces, but that is open only in one of these, belongs to that one.
    """
    sockets = [each for each in namespace_sockets(container.pid) if not _is_resolver(each)]
    ports = {each.port for each in sockets}
    theirs = {each.port for other in beside for each in namespace_sockets(other.pid)} - ports
    present = [
        each
        for each in declared(container.files)
        if (each.port not in theirs if each.port else _is_there(container, each.path))
    ]
    inside = [msgspec.structs.replace(each, path=_inside(container, each.path)) for each in present]
    return tuple(
        msgspec.structs.replace(
            each,
            name=f"{container.service}/{each.name}",
            container="" if container.on_host_network else container.service,
            path=str(container.root) + each.path if each.path.startswith("/") else each.path,
        )
        for each in reconcile(inside, sockets, speaks_tls)
    )


def _is_resolver(found: KernelSocket) -> bool:
    return found.host == _RESOLVER and not found.pid


def _is_there(container: Container, path: str) -> bool:
    return Path(path).is_relative_to(container.root) and Path(path).is_socket()


def _inside(container: Container, path: str) -> str:
    """The path of ``path`` inside the container."""
    return path and "/" + str(Path(path).relative_to(container.root))
