"""The services of a cluster of containers, as values and as parts of the compose document. No I/O.

A new kind of service is one more function that returns a :class:`Service`: invitations, volumes and health checks
follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.cli.compose.document import Anchored, Merged

UID = 10001
"""User and group in the image; see ``compose/Dockerfile``."""
HOME = "/var/lib/sluice"
JOIN = "/run/join"
"""The directory of a service's token; the authority has all of them below it, by name."""
CA_PORT = 8444
TMP = "/tmp:exec,mode=1777,size=256m"  # noqa: S108  the container's own
NO_NEW_PRIVILEGES = "no-new-privileges:true"
SECCOMP_FILE = "seccomp.json"
RUNS_JOBS = (
    NO_NEW_PRIVILEGES,
    f"seccomp=./{SECCOMP_FILE}",
    "systempaths=unconfined",
    "apparmor=${SLUICE_APPARMOR:-unconfined}",
)
"""The settings for the sandboxes of a container that runs jobs, in place of the engine's defaults."""
SETTINGS_VOLUME = "./sluice.toml:/etc/sluice/sluice.toml:ro"

QUICK_DNS = ("timeout:1", "attempts:2")
"""Options of resolv.conf(5) for services without a way out. An engine may forward the name of a stopped container to
servers that the internal networks do not reach; with the defaults, each lookup then blocks for ten seconds, and with it
a JobManager that connects to ZooKeeper again."""

SERVICE = Anchored(
    "service",
    {
        "image": "${SLUICE_IMAGE:-sluice:local}",
        "init": True,
        "user": f"{UID}:{UID}",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": [NO_NEW_PRIVILEGES],
        "dns_opt": [*QUICK_DNS],
        "restart": "unless-stopped",
        "stop_signal": "SIGTERM",
        "stop_grace_period": "30s",
        "pids_limit": 512,
        "cpus": 1.0,
        "mem_limit": "512m",
        "tmpfs": [f"{HOME}/run:uid={UID},gid={UID},mode=0700,size=4m", TMP],
        "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
    },
)
"""The common part of every service. Java loads a library from ``/tmp``."""
ENVIRONMENT = Anchored("environment", {"SLUICE_CONFIG": "/etc/sluice/sluice.toml"})
JOINING = Anchored(
    "joining",
    {**ENVIRONMENT, "SLUICE_CA_ADDRESS": f"ca:{CA_PORT}", "SLUICE_JOIN_TOKEN_FILE": f"{JOIN}/token"},
)
HEALTH = Anchored("health", {"interval": "5s", "timeout": "5s", "retries": 3, "start_period": "180s"})
"""Each check starts a process: a shorter interval would load a small machine too much. All services start at once,
which takes minutes on a small, busy machine; a ready one is healthy at once."""
AFTER_CA = Anchored("after-ca", {"ca": {"condition": "service_healthy"}})
IN_MEMORY = Anchored(
    "join",
    {
        "driver": "local",
        "driver_opts": {"type": "tmpfs", "device": "tmpfs", "o": f"uid={UID},gid={UID},mode=0700,size=1m"},
    },
)
"""A volume in memory, for join tokens and for what Envoy and its agent share."""


@dataclass(frozen=True, slots=True)
class Joining:
    """An identity that a service gets with a token.

    Attributes:
        who: role and name in the SPIFFE ID.
        hosts: names and addresses in the certificate.
        place: directory with the token, in the service.
    """

    who: str
    hosts: tuple[str, ...] = ()
    place: str = JOIN

    @property
    def name(self) -> str:
        """The name of the token's volume, without the common prefix."""
        return self.who.partition("/")[2]

    @property
    def invitation(self) -> str:
        """The invitation, as an argument of the authority."""
        return self.who + (f"={','.join(self.hosts)}" if self.hosts else "")


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The resource limits of a service that needs more than the default."""

    memory: str
    cpus: float = 2.0
    pids: int = 2048


@dataclass(frozen=True, slots=True)
class Service:
    """One service.

    Attributes:
        name: of the service, and of the volume with its home.
        command: what the image is started with.
        endpoint: the file below ``run/endpoints`` that it writes when it is ready.
        networks: with its additional names there.
        joining: the identities that need a token.
        environment: additions to those of all services of its kind.
        limits: limits above the default.
        shared_run: a volume in place of its own ``run``, and others that it shares with another program.
        mounts: volumes besides its home, as ``volume:place``.
        runs_jobs: whether its processes put job code into sandboxes of their own.
        ready: arguments of test(1) that prove readiness, if that is not a file below ``run/endpoints``.
    """

    name: str
    command: tuple[str, ...]
    endpoint: str
    networks: Mapping[str, tuple[str, ...]]
    joining: tuple[Joining, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: ResourceLimits | None = None
    shared_run: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    runs_jobs: bool = False
    ready: tuple[str, ...] = ()

    def document(self) -> Merged:
        """Its value in ``services``."""
        joining: object = Merged(JOINING, self.environment) if self.environment else JOINING
        items: dict[str, object] = {"command": [*self.command], "environment": joining, "depends_on": AFTER_CA}
        if self.runs_jobs:
            items["security_opt"] = [*RUNS_JOBS]
        if self.limits is not None:
            items |= {
                "pids_limit": self.limits.pids,
                "cpus": self.limits.cpus,
                "mem_limit": self.limits.memory,
            }
        items["networks"] = (
            {name: {"aliases": [*aliases]} if aliases else None for name, aliases in self.networks.items()}
            if any(self.networks.values())
            else [*self.networks]
        )
        if self.shared_run:
            items["tmpfs"] = [TMP]
        tokens = (f"join-{each.name}:{each.place}" for each in self.joining)
        items["volumes"] = volumes(self.name, *self.shared_run, *self.mounts, *tokens)
        items["healthcheck"] = health(*(self.ready or announced(self.endpoint)))
        return Merged(SERVICE, items)


def volumes(home: str, *others: str) -> list[str]:
    """The home, the settings, and others."""
    return [f"{home}:{HOME}", SETTINGS_VOLUME, *others]


def announced(endpoint: str) -> tuple[str, ...]:
    """Arguments of test(1) that succeed once the process has announced its readiness."""
    return ("-f", f"{HOME}/run/endpoints/{endpoint}.json")


def health(*ready: str) -> Merged:
    """The health check: test(1) with these arguments. The engine restarts a process that ends."""
    return Merged(HEALTH, {"test": ["CMD", "test", *ready]})


def authority(joining: tuple[Joining, ...]) -> Merged:
    """The service that certifies all others."""
    items = {
        "command": ["compose", "ca", f"--tokens={JOIN}", *(f"--invite={each.invitation}" for each in joining)],
        "environment": ENVIRONMENT,
        "networks": ["gateway", "cluster"],
        "volumes": volumes("ca", *(f"join-{each.name}:{JOIN}/{each.name}" for each in joining)),
        "healthcheck": health(*announced("ca")),
    }
    return Merged(SERVICE, items)
