"""The files of a cluster of containers as text: ``compose.yaml``, ``sluice.toml`` and ``.env``. Decisions only; no I/O.

``compose/`` in the source tree is what this writes for the defaults; a test compares them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from cli.compose_services import CA_PORT, HOME, JOIN, UID, Joining, Limits, Service, render_authority
from cli.errors import UsageError
from gateway.config import AUTH_NAME, EDGE_NAME, ENVOY_NAME

MAX_TASKMANAGERS = 64
RPC_PORT = 6123
BLOB_PORT = 6124
GATEWAY_PORT = 8443
JOBMANAGER_NAME = "jobmanager-1"
# A name for each network that the JobManager is on, so that each of its ports is on one of them alone.
RPC_HOST = "rpc.jobmanager.internal"
REST_HOST = "rest.jobmanager.internal"

_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,255}")


@dataclass(frozen=True, slots=True)
class ComposeSet:
    """What can be chosen.

    Attributes:
        name: of the compose project; containers, networks and volumes begin with it.
        taskmanagers: how many.
        slots: of each TaskManager.
        slot_memory_mb: heap of an executor.
        address: on which address of this machine the gateway's port is published.
        port: the one port that is published.
        host: the name that clients use for the gateway, besides localhost.
        image: of all services.
    """

    name: str = "sluice"
    taskmanagers: int = 3
    slots: int = 2
    slot_memory_mb: int = 768
    address: str = "127.0.0.1"
    port: int = 8443
    host: str = "localhost"
    image: str = "sluice:local"

    def __post_init__(self) -> None:
        """Refuse values that would mean something else in YAML, TOML or an environment file."""
        _check(bool(_PROJECT.fullmatch(self.name)), "--name", self.name, "lower-case letters, digits, '-' and '_'")
        _check(bool(_HOST.fullmatch(self.host)), "--host", self.host, "a DNS name in lower case")
        _check(bool(_IMAGE.fullmatch(self.image)), "--image", self.image, "as in registry.example.org/sluice:1.0")
        _check(1 <= self.taskmanagers <= MAX_TASKMANAGERS, "--taskmanagers", self.taskmanagers, "1 to 64")
        _check(1 <= self.slots <= 256, "--slots", self.slots, "1 to 256")
        _check(450 <= self.slot_memory_mb <= 1 << 20, "--slot-memory", self.slot_memory_mb, "at least 450 MiB")
        _check(1 <= self.port <= 65535, "--port", self.port, "1 to 65535")
        try:
            ipaddress.ip_address(self.address)
        except ValueError as error:
            raise UsageError(f"--address {self.address[:100]!r} is not an address", "as in 127.0.0.1") from error

    @property
    def taskmanager_names(self) -> tuple[str, ...]:
        """Service and process names."""
        return tuple(f"taskmanager-{number}" for number in range(1, self.taskmanagers + 1))

    @property
    def public_hosts(self) -> tuple[str, ...]:
        """What the gateway's public certificate is for; the same in the invitation and in Envoy's own options."""
        return tuple(dict.fromkeys(("localhost", self.host)))


def _check(good: bool, option: str, value: object, remedy: str) -> None:
    if not good:
        raise UsageError(f"{option} {str(value)[:100]!r} is not possible", remedy)


def render_environment(chosen: ComposeSet) -> str:
    """``.env``, which compose reads by itself: what differs from machine to machine. No secret."""
    address = f"[{chosen.address}]" if ":" in chosen.address else chosen.address
    return "\n".join(
        (
            "# Read by compose. Nothing in here is secret.",
            f"COMPOSE_PROJECT_NAME={chosen.name}",
            f"SLUICE_IMAGE={chosen.image}",
            "# The image that runs Envoy; it needs `sluice` as well.",
            f"SLUICE_ENVOY_IMAGE={chosen.image}",
            "# Where the gateway is published. 0.0.0.0: on all addresses of this machine.",
            f"SLUICE_ADDRESS={address}",
            f"SLUICE_PORT={chosen.port}",
            "",
        )
    )


def render_settings(chosen: ComposeSet) -> str:
    """``sluice.toml``, the same in every container."""
    names = ", ".join(f'"{host}"' for host in chosen.public_hosts)
    return f"""\
# The cluster's settings, mounted read-only into every container. Nothing in here is secret.

[ca]
host = "0.0.0.0"                      # on both internal networks
port = {CA_PORT}
enrolment_port = {CA_PORT + 1}

[jobmanager]
host = "{RPC_HOST}"      # on the network `cluster`
rpc_port = {RPC_PORT}
blob_port = {BLOB_PORT}
rest_host = "{REST_HOST}"  # on the network `gateway`
rest_port = 8081
heartbeat_interval = 2.0              # seconds
heartbeat_timeout = 10.0

[taskmanager]
slots = {chosen.slots}
slot_memory_mb = {chosen.slot_memory_mb}

[gateway]
host = "0.0.0.0"
port = {GATEWAY_PORT}
server_names = [{names}]
auth_host = "auth"
auth_port = 8082
authorization_timeout = 2.0           # containers share their processors with each other
"""


def render_compose(chosen: ComposeSet) -> str:
    """``compose.yaml``."""
    services = services_of(chosen)
    joining = tuple(each for service in services for each in service.joining)
    return "\n".join(
        (
            _HEADER,
            "services:",
            render_authority(joining),
            *(service.render() for service in services),
            _NETWORKS,
            "volumes:",
            "  # One home per service: what is in it was made there, and no other service sees it.",
            *(f"  {name}: {{}}" for name in ("ca", *(service.name for service in services))),
            "  # Join tokens on their way from the authority to one service each; in memory only.",
            *(f"  join-{each.name}: *join" for each in joining),
            "",
        )
    )


def services_of(chosen: ComposeSet) -> tuple[Service, ...]:
    """All of them but the authority."""
    return (
        _jobmanager(),
        *(_taskmanager(name, chosen) for name in chosen.taskmanager_names),
        _auth(),
        _envoy(chosen),
    )


_HEADER = f"""\
# Written by `sluice compose init`. Runs with docker compose v2 and with docker-compose 1.29:
#
#   docker compose up -d          (settings: sluice.toml and .env beside this file)

x-service: &service
  image: ${{SLUICE_IMAGE:-sluice:local}}
  init: true
  user: "{UID}:{UID}"
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  restart: unless-stopped
  stop_signal: SIGTERM
  stop_grace_period: 30s
  pids_limit: 512
  cpus: 1.0
  mem_limit: 512m
  # Sockets and addresses of this run, and temporary files; Java loads a library from there.
  tmpfs: &tmpfs
    - {HOME}/run:uid={UID},gid={UID},mode=0700,size=4m
    - /tmp:exec,mode=1777,size=256m
  logging:
    driver: json-file
    options: {{max-size: 10m, max-file: "3"}}

x-environment: &environment
  SLUICE_CONFIG: /etc/sluice/sluice.toml

x-joining: &joining
  SLUICE_CONFIG: /etc/sluice/sluice.toml
  SLUICE_CA: ca:{CA_PORT}
  SLUICE_JOIN_TOKEN_FILE: {JOIN}/token

x-health: &health
  # Each check starts a process: more often than this costs a small machine more than it tells.
  interval: 5s
  timeout: 5s
  retries: 3
  start_period: 60s

x-after-ca: &after-ca
  ca: {{condition: service_healthy}}

x-join: &join
  driver: local
  driver_opts: {{type: tmpfs, device: tmpfs, o: "uid={UID},gid={UID},mode=0700,size=64k"}}
"""

_NETWORKS = """
networks:
  # The only one with a way out, and the only one on which a port is published: the gateway's.
  front: {}
  # Envoy, the auth service and REST.
  gateway: {internal: true}
  # JobManager, TaskManagers, and the drivers and executors on them.
  cluster: {internal: true}
"""


def _jobmanager() -> Service:
    return Service(
        name="jobmanager",
        command=("run", "jobmanager", f"--name={JOBMANAGER_NAME}", f"--dns={RPC_HOST}", f"--dns={REST_HOST}"),
        endpoint="jobmanager",
        networks={"gateway": (REST_HOST,), "cluster": (RPC_HOST,)},
        joining=(Joining(f"jobmanager/{JOBMANAGER_NAME}", (RPC_HOST, REST_HOST)),),
        limits=Limits("4g", why="drivers run here"),
    )


def _taskmanager(name: str, chosen: ComposeSet) -> Service:
    # Heap, and as much again for metaspace, threads, network buffers and the Python workers of a slot.
    memory_mb = 512 + chosen.slots * (2 * chosen.slot_memory_mb)
    return Service(
        name=name,
        command=("run", "taskmanager", f"--name={name}", f"--dns={name}"),
        endpoint=f"taskmanager-{name}",
        networks={"cluster": ()},
        joining=(Joining(f"taskmanager/{name}", (name,)),),
        environment={"SLUICE_JOBMANAGER": f"{RPC_HOST}:{RPC_PORT}", "SLUICE__TASKMANAGER__HOST": name},
        limits=Limits(f"{memory_mb}m", why=f"{chosen.slots} slots"),
    )


def _auth() -> Service:
    return Service(
        name="auth",
        command=("run", "auth", "--dns=auth"),
        endpoint="auth",
        networks={"gateway": ()},
        joining=(Joining(f"auth/{AUTH_NAME}", ("auth",)),),
    )


def _envoy(chosen: ComposeSet) -> Service:
    edge_place = f"{JOIN}-edge"
    return Service(
        name="envoy",
        comment="The only door.",
        image="${SLUICE_ENVOY_IMAGE:-sluice:local}",
        command=("run", "envoy", *(f"--dns={host}" for host in chosen.public_hosts), "--ip=127.0.0.1"),
        endpoint="envoy",
        networks={"front": (), "gateway": ()},
        joining=(
            Joining(f"gateway/{ENVOY_NAME}"),
            Joining(f"gateway/{EDGE_NAME}", (*chosen.public_hosts, "127.0.0.1"), edge_place),
        ),
        environment={"SLUICE_EDGE_TOKEN_FILE": f"{edge_place}/token"},
        ports=(f"${{SLUICE_ADDRESS:-127.0.0.1}}:${{SLUICE_PORT:-8443}}:{GATEWAY_PORT}",),
    )
