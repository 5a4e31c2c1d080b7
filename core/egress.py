"""Settings of the outgoing connections of jobs (section ``[egress]`` of ``sluice.toml``)."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from sluice.core.errors import SluiceError, StoreError
from sluice.core.files import read_bounded
from sluice.core.home import Home

SANDBOX = "sandbox"
"""The level of isolation without which a job's network cannot be its own."""


class EgressMode(enum.StrEnum):
    """What happens to connections that a job makes to anything outside itself."""

    ENFORCE = "enforce"
    """Only those that the policy allows."""
    AUDIT = "audit"
    """All, and each is recorded."""
    OFF = "off"
    """All, and nobody knows of them: jobs share the network of their machine."""


class EgressSetting(enum.StrEnum):
    """What can be configured: a mode, or none."""

    DEFAULT = "default"
    ENFORCE = "enforce"
    AUDIT = "audit"
    OFF = "off"


_MAX_PORT = 65535

DEFAULT_MODE = EgressMode.ENFORCE
"""The default in sandboxes."""


class EgressMisconfigured(SluiceError):
    """The configured egress mode cannot be enforced."""


class EgressConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What jobs may connect to outside the job itself."""

    mode: EgressSetting = EgressSetting.DEFAULT
    """``enforce``: what the policy allows; ``audit``: everything, and it is recorded; ``off``: everything; ``default``:
    ``enforce`` in sandboxes, else ``off``."""

    host: str = "127.0.0.1"
    """Address on which the gateway's Envoy listens for the connections of jobs."""
    port: int = 0
    """Its port; 0: any free one, which TaskManagers of the same home learn."""
    address: str = ""
    """``host:port`` at which TaskManagers reach that listener; empty: what the gateway of the same home announces."""
    idle_timeout: float = 3600.0
    """How long a connection may be silent, in seconds."""
    max_seconds: float = 86400.0
    """How long a connection may last, in seconds."""
    max_connections: int = 10_000
    """Of all jobs together; more are closed at once."""
    job_connections: int = 2000
    """Of one job on one TaskManager at a time; further ones are refused."""
    job_connections_per_second: int = 200
    """New ones, and look-ups of names, that one job on one TaskManager may try on average; after a pause five times as
    many at once."""
    grace: float = 10.0
    """How long open connections stay while nobody answers about the policy, in seconds; then they end (``enforce``). A
    new leader is usually there sooner."""
    nameservers: tuple[str, ...] = ()
    """Addresses of the DNS servers that are asked for the names of destinations, each with a port unless it is 53;
    empty: those of the machine of the auth service."""

    def __post_init__(self) -> None:
        if self.address:
            split_address(self.address)
        if not 0 <= self.port <= _MAX_PORT:
            raise ValueError(f"port must be 0 to {_MAX_PORT}")
        for key in (
            *("idle_timeout", "max_seconds", "max_connections"),
            *("job_connections", "job_connections_per_second", "grace"),
        ):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} must be more than 0")


class _Announced(msgspec.Struct, frozen=True):
    host: str
    port: int


def egress_mode(config: EgressConfig, level: str) -> EgressMode:
    """The mode that applies at a level of isolation.

    Raises:
        EgressMisconfigured: the configured mode needs sandboxes, and this level has none.
    """
    if config.mode is EgressSetting.DEFAULT:
        return DEFAULT_MODE if level == SANDBOX else EgressMode.OFF
    if config.mode is not EgressSetting.OFF and level != SANDBOX:
        raise EgressMisconfigured(
            f'egress.mode = "{config.mode}" needs isolation.level = "{SANDBOX}", not "{level}"',
            f'set isolation.level = "{SANDBOX}", or egress.mode = "off": jobs may then connect to anything',
        )
    return EgressMode(config.mode)


def egress_endpoint(home: Home) -> Path:
    """Where the gateway of ``home`` announces its listener for jobs."""
    return home.run / "endpoints" / "egress.json"


def egress_address(config: EgressConfig, home: Home) -> tuple[str, int]:
    """Where TaskManagers reach the gateway's listener for jobs; raises :class:`EgressMisconfigured`."""
    if config.address:
        return split_address(config.address)
    try:
        announced = msgspec.json.decode(read_bounded(egress_endpoint(home)), type=_Announced)
    except (StoreError, msgspec.MsgspecError) as error:
        raise EgressMisconfigured(
            "the gateway announces no listener for jobs in this home",
            "set egress.address to where TaskManagers reach it, or start the gateway",
        ) from error
    return announced.host, announced.port


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, of ``[v6]:port`` without the brackets; raises ``ValueError``."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare) is (bare == host) or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise ValueError(f"{text[:200]!r} is not host:port")
    return bare, int(port)
