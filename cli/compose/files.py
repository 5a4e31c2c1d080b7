"""``compose.yaml`` of a cluster of containers as text. Decisions only; no I/O.

``compose/`` in the source tree is what this writes for the defaults; a test compares them.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sluice.cli.compose.choices import ENVOY_IMAGE, JVM_OVERHEAD_MB, SHUFFLE_MANAGERS, ComposeSet
from sluice.cli.compose.document import Merged, dump
from sluice.cli.compose.ha_services import ha_networks, ha_volumes, jobmanager_addresses, jobmanager_services
from sluice.cli.compose.services import (
    AFTER_CA,
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
from sluice.cli.compose.settings import BOX_PROCESSES, CERTIFICATE, DRIVER_MEMORY_MB, DRIVER_PYTHON_MB, GATEWAY_PORT
from sluice.gateway import AUTH_NAME, EDGE_NAME, ENVOY_NAME
from sluice.gateway.proxy import arguments

OWN_MEMORY_MB = 512
"""Memory of a TaskManager itself, and for its files in the kernel's cache."""
OWN_PROCESSES = 512
"""Processes and threads of a TaskManager itself, of drivers' agents, and of sandbox helpers."""
AGENT_MB = 96
SHARED_BY_MANAGERS = f"shuffle-ha:{HOME}/shuffle-ha"
"""Where ShuffleManagers elect a leader: a file lock that all containers of this machine share."""
SHARED_WITH_ENVOY = (f"envoy-run:{HOME}/run", f"envoy-log:{HOME}/access")


def seccomp_profile() -> str:
    """``seccomp.json``, package data: the system calls that a TaskManager's container may make."""
    return files("sluice.cli.compose").joinpath(SECCOMP_FILE).read_text()


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
    """Whether ShuffleManagers elect a leader with a file; JobManagers with ZooKeeper share theirs."""
    return chosen.shuffle_workers > 0 and chosen.jobmanagers == 1


def _shuffle_volumes(chosen: ComposeSet) -> tuple[str, ...]:
    """The volume with the leading ShuffleManager and the living jobs, for a takeover by the other one."""
    return ("shuffle-ha",) if _managers_share(chosen) else ()


def services_of(chosen: ComposeSet) -> tuple[Service, ...]:
    """All services except the authority."""
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
            # The files of one job there must not fill the small /tmp of all others.
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
        mounts=(f"{chosen.certificate}:{CERTIFICATE}:ro",) if chosen.certificate else (),
    )


def _envoy() -> Merged:
    """Envoy, the only service without our image."""
    items = {
        "image": f"${{SLUICE_ENVOY_IMAGE:-{ENVOY_IMAGE}}}",
        "entrypoint": ["/usr/local/bin/envoy"],
        "command": arguments(Path("run/envoy/bootstrap.json")),
        "working_dir": HOME,
        "depends_on": {"envoy-agent": {"condition": "service_healthy"}},
        "networks": ["front", "gateway", "cluster"],
        "dns_opt": [],
        "ports": [f"${{SLUICE_ADDRESS:-127.0.0.1}}:${{SLUICE_PORT:-8443}}:{GATEWAY_PORT}"],
        "tmpfs": [TMP],
        # The parent directory of the others, so that it belongs to the user like its contents.
        "volumes": [f"envoy:{HOME}", *SHARED_WITH_ENVOY],
        "healthcheck": health(*announced("envoy")),
    }
    return Merged(SERVICE, items)
