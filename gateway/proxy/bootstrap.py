"""Envoy's bootstrap: only where its real configuration comes from; everything else is sent to it while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.core import Home
from sluice.gateway.audit_log import access_file
from sluice.gateway.config import GatewayConfig
from sluice.gateway.connect import connect_socket
from sluice.gateway.envoy_config import DIRECTORY, FROM_XDS, fill, seconds
from sluice.gateway.upstreams import (
    SDS_CLUSTER,
    XDS_CLUSTER,
    Leg,
    Legs,
    TlsLeg,
    UnixLeg,
    cluster,
    grpc_service,
)
from sluice.pki import Role

SOURCE = DIRECTORY / "bootstrap.jsonc"


@dataclass(frozen=True, slots=True)
class EnvoyPaths:
    """Files and sockets of one Envoy process."""

    admin_socket: Path
    auth_socket: Path
    xds_socket: Path
    sds_socket: Path
    rest_socket: Path
    bootstrap: Path
    configuration: Path
    connect_socket: Path
    access_log: Path

    @classmethod
    def of(cls, home: Home) -> EnvoyPaths:
        """Where they are in ``home``."""
        return cls(
            admin_socket=home.sockets / "envoy-admin.sock",
            auth_socket=home.sockets / "auth.sock",
            xds_socket=home.sockets / "xds.sock",
            sds_socket=home.sockets / "sds.sock",
            rest_socket=home.sockets / "rest.sock",
            bootstrap=home.run / "envoy" / "bootstrap.json",
            configuration=home.run / "envoy" / "configuration.json",
            access_log=access_file(home),
            connect_socket=connect_socket(home),
        )


def legs_of(config: GatewayConfig, paths: EnvoyPaths, rest: tuple[str, int] | None = None) -> Legs:
    """Where Envoy finds the auth service and REST; ``rest`` is REST's address, None: its unix socket."""
    auth_leg: Leg = UnixLeg(paths.auth_socket)
    if config.auth_host:
        auth_leg = TlsLeg(config.auth_host, config.auth_port, Role.AUTH)
    rest_leg = UnixLeg(paths.rest_socket) if rest is None else TlsLeg(*rest, Role.JOBMANAGER)
    return Legs(auth_leg, rest_leg, UnixLeg(paths.connect_socket))


def xds_leg(legs: Legs, paths: EnvoyPaths) -> Leg:
    """The xDS server is at the address of the auth service (HTTP/2 there), or on a socket of its own."""
    return legs.auth if isinstance(legs.auth, TlsLeg) else UnixLeg(paths.xds_socket)


def render(source: object, config: GatewayConfig, trust_domain: str, paths: EnvoyPaths, legs: Legs) -> object:
    """The complete bootstrap; raises :class:`BootstrapError` when source and values do not fit each other."""
    return fill(
        source,
        {
            "trust_domain": trust_domain,
            "max_connections": config.max_connections,
            "admin_socket": str(paths.admin_socket),
            "from_xds": FROM_XDS,
            "xds_service": grpc_service(XDS_CLUSTER),
            "xds_cluster": cluster(
                XDS_CLUSTER,
                xds_leg(legs, paths),
                trust_domain,
                connect_timeout="2s",
                max_connection_duration=seconds(config.max_upstream_seconds),
                http2=True,
            ),
            "sds_cluster": cluster(
                SDS_CLUSTER,
                UnixLeg(paths.sds_socket),
                trust_domain,
                connect_timeout="2s",
                max_connection_duration="0s",
                http2=True,
            ),
        },
    )
