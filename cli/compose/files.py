"""The files of a cluster of containers as text: ``compose.yaml``, ``sluice.toml``, ``.env``. Decisions only; no I/O.

``compose/`` in the source tree is what this writes for the defaults; a test compares them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from sluice.cli.compose.document import Merged, dump
from sluice.cli.compose.ha_services import (
    MAX_JOBMANAGERS,
    REST_HOST,
    RPC_PORT,
    ha_networks,
    ha_settings,
    ha_volumes,
    jobmanager_addresses,
    jobmanager_services,
)
from sluice.cli.compose.services import (
    AFTER_CA,
    CA_PORT,
    ENVIRONMENT,
    HEALTH,
    HOME,
    IN_MEMORY,
    JOIN,
    JOINING,
    SECCOMP_FILE,
    SERVICE,
    TMP,
    Joining,
    ResourceLimits,
    Service,
    announced,
    authority,
    health,
)
from sluice.cli.errors import UsageError
from sluice.core import url_host
from sluice.gateway import AUTH_NAME, EDGE_NAME, ENVOY_NAME
from sluice.gateway.proxy import arguments

MAX_TASKMANAGERS = 64
OWN_MEMORY_MB = 512
"""Of a TaskManager itself, and for the files that the kernel caches for it."""
OWN_PROCESSES = 512
"""Processes and threads of a TaskManager itself, of drivers' agents, and what makes sandboxes."""
DRIVER_MEMORY_MB = 768
DRIVER_PYTHON_MB = 768
AGENT_MB = 96
JVM_OVERHEAD_MB = 384
"""What a JVM takes besides its heap, as Spark counts it: 10 %, at least this."""
LEAST_PYTHON_MB = 384
BOX_PROCESSES = 512
"""Processes and threads of one sandbox: a JVM has about a hundred."""
BOX_TMP_MB = 128
BLOB_PORT = 6124
GATEWAY_PORT = 8443
EGRESS_PORT = 8447
ENVOY_IMAGE = "envoyproxy/envoy:v1.40.0"
"""The official image, in the version that the tests run (see ``requirements/run.txt``)."""
SHUFFLE_PORT = 7337
SHUFFLE_DATA_PORT = 7338
SHUFFLE_MANAGERS = ("shuffle-manager-1", "shuffle-manager-2")
SHARED_BY_MANAGERS = f"shuffle-ha:{HOME}/shuffle-ha"
"""Where ShuffleManagers elect one of them: a lock of the kernel that all containers of this machine share."""
SHARED_WITH_ENVOY = (f"envoy-run:{HOME}/run", f"envoy-log:{HOME}/access")

_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,255}")


@dataclass(frozen=True, slots=True)
class ComposeSet:
    """What can be chosen.

    Attributes:
        name: of the compose project; containers, networks and volumes begin with it.
        taskmanagers: how many.
        jobmanagers: how many; of several one leads, elected by three ZooKeeper servers.
        shuffle_workers: how many; 0: Spark's own shuffle is used.
        slots: of each TaskManager.
        slot_memory_mb: heap of an executor.
        driver_slots: drivers that a TaskManager runs at a time.
        address: on which address of this machine the gateway's port is published.
        port: the one port that is published.
        host: the name that clients use for the gateway, besides localhost.
        image: of all services but Envoy.
        envoy_image: of Envoy.
    """

    name: str = "sluice"
    taskmanagers: int = 3
    slots: int = 2
    slot_memory_mb: int = 768
    address: str = "127.0.0.1"
    port: int = 8443
    host: str = "localhost"
    image: str = "sluice:local"
    envoy_image: str = ENVOY_IMAGE
    shuffle_workers: int = 2
    jobmanagers: int = 2
    driver_slots: int = 2

    def __post_init__(self) -> None:
        """Refuse values that would mean something else in YAML, TOML or an environment file."""
        _check(bool(_PROJECT.fullmatch(self.name)), "--name", self.name, "lower-case letters, digits, '-' and '_'")
        _check(bool(_HOST.fullmatch(self.host)), "--host", self.host, "a DNS name in lower case")
        for option, image in (("--image", self.image), ("--envoy-image", self.envoy_image)):
            _check(bool(_IMAGE.fullmatch(image)), option, image, "as in registry.example.org/sluice:1.0")
        _check(1 <= self.taskmanagers <= MAX_TASKMANAGERS, "--taskmanagers", self.taskmanagers, "1 to 64")
        _check(1 <= self.jobmanagers <= MAX_JOBMANAGERS, "--jobmanagers", self.jobmanagers, f"1 to {MAX_JOBMANAGERS}")
        _check(0 <= self.shuffle_workers <= MAX_TASKMANAGERS, "--shuffle-workers", self.shuffle_workers, "0 to 64")
        _check(1 <= self.slots <= 256, "--slots", self.slots, "1 to 256")
        _check(1 <= self.driver_slots <= 256, "--driver-slots", self.driver_slots, "1 to 256")
        _check(450 <= self.slot_memory_mb <= 1 << 20, "--slot-memory", self.slot_memory_mb, "at least 450 MiB")
        _check(1 <= self.port <= 65535, "--port", self.port, "1 to 65535")
        try:
            ipaddress.ip_address(self.address)
        except ValueError as error:
            raise UsageError(f"--address {self.address[:100]!r} is not an address", "as in 127.0.0.1") from error

    @property
    def boxes(self) -> int:
        """Sandboxes that a TaskManager may run at a time: one for an executor, two for a driver."""
        return self.slots + 2 * self.driver_slots

    @property
    def python_memory_mb(self) -> int:
        """For the Python workers of an executor: what its heap leaves of twice its size, as Spark counts overhead."""
        return max(LEAST_PYTHON_MB, self.slot_memory_mb - JVM_OVERHEAD_MB)

    @property
    def taskmanager_names(self) -> tuple[str, ...]:
        """Service and process names."""
        return tuple(f"taskmanager-{number}" for number in range(1, self.taskmanagers + 1))

    @property
    def shuffle_names(self) -> tuple[str, ...]:
        """Service and process names of ShuffleManagers and ShuffleWorkers."""
        if not self.shuffle_workers:
            return ()
        return (*SHUFFLE_MANAGERS, *(f"shuffle-worker-{number}" for number in range(1, self.shuffle_workers + 1)))

    @property
    def public_hosts(self) -> tuple[str, ...]:
        """What the gateway's public certificate is for; the same in the invitation and in Envoy's own options."""
        return tuple(dict.fromkeys(("localhost", self.host)))


def _check(good: bool, option: str, value: object, remedy: str) -> None:
    if not good:
        raise UsageError(f"{option} {str(value)[:100]!r} is not possible", remedy)


def render_environment(chosen: ComposeSet) -> str:
    """``.env``, which compose reads by itself: what differs from machine to machine. No secret."""
    return "\n".join(
        (
            "# Read by compose. Nothing in here is secret.",
            f"COMPOSE_PROJECT_NAME={chosen.name}",
            f"SLUICE_IMAGE={chosen.image}",
            "# The image that runs Envoy: /usr/local/bin/envoy, and `test` for its health check.",
            f"SLUICE_ENVOY_IMAGE={chosen.envoy_image}",
            "# Where the gateway is published. 0.0.0.0: on all addresses of this machine.",
            f"SLUICE_ADDRESS={url_host(chosen.address)}",
            f"SLUICE_PORT={chosen.port}",
            "# AppArmor's profile of TaskManagers. It must allow mounts and user namespaces; docker-default does not.",
            "SLUICE_APPARMOR=unconfined",
            "",
        )
    )


def seccomp_profile() -> str:
    """``seccomp.json``, package data: what processes in a TaskManager's container may ask of the kernel."""
    return files("sluice.cli.compose").joinpath(SECCOMP_FILE).read_text()


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
rpc_port = {RPC_PORT}
blob_port = {BLOB_PORT}
rest_host = "{REST_HOST}"  # on the network `gateway`; all JobManagers have that name there
rest_port = 8081
heartbeat_interval = 2.0              # seconds
heartbeat_timeout = 10.0

[taskmanager]
slots = {chosen.slots}
slot_memory_mb = {chosen.slot_memory_mb}
driver_slots = {chosen.driver_slots}                      # drivers at a time, besides the executors in slots

[spark]
driver_memory_mb = {DRIVER_MEMORY_MB}

[isolation]                           # of each process of a job; what they use together the container bounds
level = "sandbox"
max_processes = {BOX_PROCESSES}
tmp_mb = {BOX_TMP_MB}                          # of /tmp, and of /dev/shm
python_worker_memory_mb = {chosen.python_memory_mb}
driver_python_memory_mb = {DRIVER_PYTHON_MB}
{ha_settings(chosen.jobmanagers)}{_shuffle_settings(chosen)}
[egress]                              # where Envoy takes the connections of jobs, on the network `cluster`
host = "0.0.0.0"
port = {EGRESS_PORT}
address = "envoy:{EGRESS_PORT}"

[gateway]
host = "0.0.0.0"
port = {GATEWAY_PORT}
server_names = [{names}]
auth_host = "auth"
auth_port = 8082
authorization_timeout = 2.0           # containers share their processors with each other
"""


def _shuffle_settings(chosen: ComposeSet) -> str:
    if not chosen.shuffle_workers:
        return "\n[shuffle]\nenabled = false\n"
    managers = ", ".join(f'"{name}:{SHUFFLE_PORT}"' for name in SHUFFLE_MANAGERS)
    names = ", ".join(f'"{name}"' for name in SHUFFLE_MANAGERS)
    return f"""
[shuffle]
enabled = true
managers = [{managers}]
manager_names = [{names}]
manager_port = {SHUFFLE_PORT}
worker_port = {SHUFFLE_DATA_PORT}
memory_mb = 256                       # of each worker
"""


def render_compose(chosen: ComposeSet) -> str:
    """``compose.yaml``."""
    services = services_of(chosen)
    joining = tuple(each for service in services for each in service.joining)
    homes = ("ca", *(service.name for service in services))
    shared = (*ha_volumes(chosen.jobmanagers), *_shuffle_volumes(chosen))
    internal = ("gateway", "cluster", *ha_networks(chosen.jobmanagers))
    document = {
        **{f"x-{each.anchor}": each for each in (SERVICE, ENVIRONMENT, JOINING, HEALTH, AFTER_CA, IN_MEMORY)},
        "services": {
            "ca": authority(joining),
            **{service.name: service.document() for service in services},
            "envoy": _envoy(),
        },
        "networks": {"front": {}, **{name: {"internal": True} for name in internal}},
        "volumes": {
            **{name: {} for name in homes},
            **{f"join-{each.name}": IN_MEMORY for each in joining},
            "envoy": IN_MEMORY,
            "envoy-run": IN_MEMORY,
            "envoy-log": {},
            **{name: {} for name in shared},
        },
    }
    absent = {"ensemble", "ha-storage", "shuffle-ha"}.difference(internal, shared)
    header = "\n".join(line for line in _HEADER.splitlines() if not absent.intersection(line.split()))
    return dump(document, header)


def _managers_share(chosen: ComposeSet) -> bool:
    """Whether ShuffleManagers elect one of them by a file; JobManagers that have ZooKeeper share it with them."""
    return chosen.shuffle_workers > 0 and chosen.jobmanagers == 1


def _shuffle_volumes(chosen: ComposeSet) -> tuple[str, ...]:
    """The volume that tells which ShuffleManager leads, and the jobs that are alive, for the other one to go on."""
    return ("shuffle-ha",) if _managers_share(chosen) else ()


def services_of(chosen: ComposeSet) -> tuple[Service, ...]:
    """All of them but the authority."""
    return (
        *jobmanager_services(chosen.jobmanagers),
        *(_taskmanager(name, chosen) for name in chosen.taskmanager_names),
        *(_shuffle(name, chosen) for name in chosen.shuffle_names),
        _auth(),
        _envoy_agent(chosen),
    )


_HEADER = """\
Written by `sluice compose init`. Needs docker compose v2:

  docker compose up -d          (settings: sluice.toml and .env beside this file)

Services
  ca            makes the authorities at its first start, and a join token, good once, for each other service
  envoy         the only ingress. The program alone: its configuration comes from `auth`, its keys from `envoy-agent`
  envoy-agent   makes and renews Envoy's identities and hands them over on a socket; no file holds a key for Envoy
  jobmanager    runs no code of a job
  taskmanager-… run drivers and executors in sandboxes, and may make namespaces for that: seccomp.json says which.
                Their memory follows from their slots

Networks
  front         the only one with a way out, and the only one on which a port is published: the gateway's
  gateway       Envoy, the auth service and REST
  cluster       JobManagers, and TaskManagers with drivers and executors; Envoy takes their connections to hosts outside
  ensemble      ZooKeeper's servers among themselves

Volumes
  one home per service: what is in it was made there, and no other service mounts it
  join-…        join tokens on their way from the authority to one service each; in memory only
  envoy…        what Envoy and its agent share: sockets and addresses of this run, in memory; and the access log
  ha-storage    submissions and results, for whichever JobManager leads next
  shuffle-ha    which ShuffleManager leads, and the jobs that are alive, for the other one to go on
"""


def _taskmanager(name: str, chosen: ComposeSet) -> Service:
    executor_mb = chosen.slot_memory_mb + max(JVM_OVERHEAD_MB, chosen.slot_memory_mb // 10) + chosen.python_memory_mb
    driver_mb = DRIVER_MEMORY_MB + JVM_OVERHEAD_MB + DRIVER_PYTHON_MB + AGENT_MB
    memory_mb = OWN_MEMORY_MB + chosen.slots * executor_mb + chosen.driver_slots * driver_mb
    return Service(
        name=name,
        command=("run", "taskmanager", f"--name={name}", f"--dns={name}"),
        endpoint=f"taskmanager-{name}",
        networks={"cluster": ()},
        joining=(Joining(f"taskmanager/{name}", (name,)),),
        environment={
            "SLUICE_JOBMANAGER": jobmanager_addresses(chosen.jobmanagers),
            "SLUICE__TASKMANAGER__HOST": name,
            # What one job keeps there must not fill the small /tmp of all others.
            "TMPDIR": f"{HOME}/tmp",  # noqa: S108  in the TaskManager's own volume
        },
        # No job can use up the processes that the TaskManager and other jobs need.
        limits=ResourceLimits(f"{memory_mb}m", pids=OWN_PROCESSES + chosen.boxes * BOX_PROCESSES),
        runs_jobs=True,
    )


def _shuffle(name: str, chosen: ComposeSet) -> Service:
    manages = name in SHUFFLE_MANAGERS
    role = "shuffle-manager" if manages else "shuffle-worker"
    return Service(
        name=name,
        command=("run", role, f"--name={name}", f"--dns={name}"),
        endpoint=f"{role}-{name}",
        networks={"cluster": ()},
        joining=(Joining(f"{role}/{name}", (name,)),),
        environment={"SLUICE__SHUFFLE__HOST": name},
        # A worker's memory_mb, and as much again for the files that it reads.
        limits=None if manages else ResourceLimits("768m"),
        mounts=(SHARED_BY_MANAGERS,) if manages and _managers_share(chosen) else (),
    )


def _auth() -> Service:
    return Service(
        name="auth",
        command=("run", "auth", "--dns=auth"),
        endpoint="auth",
        networks={"gateway": ()},
        joining=(Joining(f"auth/{AUTH_NAME}", ("auth",)),),
    )


def _envoy_agent(chosen: ComposeSet) -> Service:
    edge_place = f"{JOIN}-edge"
    return Service(
        name="envoy-agent",
        command=("run", "envoy", "--elsewhere", *(f"--dns={host}" for host in chosen.public_hosts), "--ip=127.0.0.1"),
        endpoint="envoy",
        ready=("-S", f"{HOME}/run/sock/sds.sock"),
        networks={"gateway": ()},
        joining=(
            Joining(f"gateway/{ENVOY_NAME}"),
            Joining(f"gateway/{EDGE_NAME}", (*chosen.public_hosts, "127.0.0.1"), edge_place),
        ),
        environment={"SLUICE_EDGE_TOKEN_FILE": f"{edge_place}/token"},
        shared_run=SHARED_WITH_ENVOY,
    )


def _envoy() -> Merged:
    """The one service that has nothing of ours in it."""
    items = {
        "image": f"${{SLUICE_ENVOY_IMAGE:-{ENVOY_IMAGE}}}",
        "entrypoint": ["/usr/local/bin/envoy"],
        "command": arguments(Path("run/envoy/bootstrap.json")),
        "working_dir": HOME,
        "depends_on": {"envoy-agent": {"condition": "service_healthy"}},
        "networks": ["front", "gateway", "cluster"],
        "ports": [f"${{SLUICE_ADDRESS:-127.0.0.1}}:${{SLUICE_PORT:-8443}}:{GATEWAY_PORT}"],
        "tmpfs": [TMP],
        # The directory that the others are in, for it to belong to the user, as everything in it does.
        "volumes": [f"envoy:{HOME}", *SHARED_WITH_ENVOY],
        "healthcheck": health(*announced("envoy")),
    }
    return Merged(SERVICE, items)
