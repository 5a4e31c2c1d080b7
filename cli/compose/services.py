"""The services of a cluster of containers, as values, and each as a piece of ``compose.yaml``. No I/O.

A new kind of service is one more function that returns a :class:`Service`: invitations, volumes and health checks
follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UID = 10001
"""User and group in the image; see ``compose/Dockerfile``."""
HOME = "/var/lib/sluice"
JOIN = "/run/join"
"""Where a service finds its token; the authority sees those of all below it, by name."""
CA_PORT = 8444
TMP = "/tmp:exec,mode=1777,size=256m"  # noqa: S108  the container's own
SETTINGS_VOLUME = "./sluice.toml:/etc/sluice/sluice.toml:ro"


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
        """Of the volume that the token comes in, without what all have in front."""
        return self.who.partition("/")[2]

    @property
    def invitation(self) -> str:
        """As the authority is told it."""
        return self.who + (f"={','.join(self.hosts)}" if self.hosts else "")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a service may use where the default is not enough; ``why`` is said beside the memory."""

    memory: str
    cpus: str = "2.0"
    pids: int = 2048
    why: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """One service.

    Attributes:
        name: of the service, and of the volume with its home.
        command: what the image is started with.
        endpoint: the file below ``run/endpoints`` that says that it takes work.
        networks: with the names that it has there besides its own.
        joining: the identities that it needs a token for.
        environment: besides what all services of its kind have.
        limits: where the default is not enough.
        shared_run: a volume in place of a ``run`` of its own, and what else it shares with the program beside it.
        mounts: volumes besides its home, as ``volume:place``.
        ready: what proves that it takes work, where that is no file below ``run/endpoints``.
        comment: said above it.
    """

    name: str
    command: tuple[str, ...]
    endpoint: str
    networks: Mapping[str, tuple[str, ...]]
    joining: tuple[Joining, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    shared_run: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    ready: str = ""
    comment: str = ""

    def render(self) -> str:
        """As a part of ``services``."""
        lines = [f"  # {self.comment}"] if self.comment else []
        lines += [f"  {self.name}:", "    <<: *service"]
        lines.append(f"    command: [{', '.join(self.command)}]")
        if self.environment:
            lines += ["    environment:", "      <<: *joining"]
            lines += [f"      {name}: {value}" for name, value in self.environment.items()]
        else:
            lines.append("    environment: *joining")
        lines.append("    depends_on: *after-ca")
        if self.limits is not None:
            lines += [f"    pids_limit: {self.limits.pids}", f"    cpus: {self.limits.cpus}"]
            lines.append(f"    mem_limit: {self.limits.memory}  # {self.limits.why}")
        lines += _networks(self.networks)
        tokens = [f"join-{each.name}:{each.place}" for each in self.joining]
        if self.shared_run:
            lines.append(f'    tmpfs: ["{TMP}"]')
        lines += volumes(self.name, *self.shared_run, *self.mounts, *tokens)
        lines += health(self.ready or announced(self.endpoint))
        return "\n".join((*lines, ""))


def volumes(home: str, *others: str) -> list[str]:
    """The home, the settings, and what else there is."""
    return ["    volumes:", *(f"      - {each}" for each in (f"{home}:{HOME}", SETTINGS_VOLUME, *others))]


def announced(endpoint: str) -> str:
    """Healthy: the process has announced that it takes work. One that ends is started again by the engine."""
    return f"-f, {HOME}/run/endpoints/{endpoint}.json"


def health(ready: str) -> list[str]:
    """The check: ``test`` with these arguments."""
    return ["    healthcheck:", "      <<: *health", f"      test: [CMD, test, {ready}]"]


def _networks(networks: Mapping[str, tuple[str, ...]]) -> list[str]:
    if not any(networks.values()):
        return [f"    networks: [{', '.join(networks)}]"]
    return [
        "    networks:",
        *(f"      {name}: {{aliases: [{', '.join(aliases)}]}}" for name, aliases in networks.items()),
    ]


def render_authority(joining: tuple[Joining, ...]) -> str:
    """The service that all others ask for their certificates."""
    return "\n".join(
        (
            "  # Makes the authorities at its first start, and a token, good once, for each service that is to join.",
            "  ca:",
            "    <<: *service",
            "    command:",
            "      - compose",
            "      - ca",
            f"      - --tokens={JOIN}",
            *(f"      - --invite={each.invitation}" for each in joining),
            "    environment: *environment",
            "    networks: [gateway, cluster]",
            *volumes("ca", *(f"join-{each.name}:{JOIN}/{each.name}" for each in joining)),
            *health(announced("ca")),
            "",
        )
    )
