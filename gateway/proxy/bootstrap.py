"""Envoy's bootstrap. It only names the xDS servers, which send the rest of the configuration at run time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.core import Home
from sluice.gateway.audit_log import access_file
from sluice.gateway.config import ENVOY_NAME, GatewayConfig
from sluice.gateway.connect import connect_socket
from sluice.gateway.envoy_config import DIRECTORY, FROM_XDS, fill, seconds
from sluice.gateway.upstreams import (
    SDS_CLUSTER,
    XDS_CLUSTER,
    TlsUpstream,
    UnixUpstream,
    Upstream,
    Upstreams,
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
    def of(cls, home: Home, name: str = ENVOY_NAME) -> EnvoyPaths:
        """The paths in ``home``: those that all its Envoys share, and those of Envoy ``name`` only."""
        own = home if name == ENVOY_NAME else home.envoy(name)
        return cls(
            admin_socket=own.sockets / "envoy-admin.sock",
            auth_socket=home.sockets / "auth.sock",
            xds_socket=home.sockets / "xds.sock",
            sds_socket=own.sockets / "sds.sock",
            rest_socket=home.sockets / "rest.sock",
            bootstrap=own.run / "envoy" / "bootstrap.json",
            configuration=home.run / "envoy" / "configuration.json",
            access_log=access_file(own),
            connect_socket=connect_socket(home),
        )


def upstreams_of(config: GatewayConfig, paths: EnvoyPaths, rest: tuple[str, int] | None = None) -> Upstreams:
    """Envoy's connections to the auth service and to REST. ``rest`` is REST's address; None means its Unix socket."""
    auth: list[Upstream] = [TlsUpstream(host, port, Role.AUTH) for host, port in config.auth_places]
    if not auth:
        auth = [
            UnixUpstream(auth_service_path(paths.auth_socket, number)) for number in range(1, config.auth_services + 1)
        ]
    rest_upstream = UnixUpstream(paths.rest_socket) if rest is None else TlsUpstream(*rest, Role.JOBMANAGER)
    return Upstreams(auth[0], rest_upstream, UnixUpstream(paths.connect_socket), tuple(auth[1:]))


def auth_service_path(first: Path, number: int) -> Path:
    """The socket or file of the auth service with this number, derived from that of the first one."""
    return first if number == 1 else first.with_name(f"{first.stem}-{number}{first.suffix}")


def xds_upstreams(upstreams: Upstreams, paths: EnvoyPaths) -> tuple[Upstream, ...]:
    """The xDS servers: at the addresses of the auth services (over HTTP/2), or on separate Unix sockets."""
    if isinstance(upstreams.auth, TlsUpstream):
        return upstreams.auth, *upstreams.more_auth
    return tuple(
        UnixUpstream(auth_service_path(paths.xds_socket, number)) for number in range(1, 2 + len(upstreams.more_auth))
    )


def render(source: object, config: GatewayConfig, trust_domain: str, paths: EnvoyPaths, upstreams: Upstreams) -> object:
    """The complete bootstrap; raises :class:`BootstrapError` when source and values do not match."""
    xds, *more_xds = xds_upstreams(upstreams, paths)
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
                xds,
                trust_domain,
                connect_timeout="2s",
                max_connection_duration=seconds(config.max_upstream_seconds),
                http2=True,
                replicas=more_xds,
            ),
            "sds_cluster": cluster(
                SDS_CLUSTER,
                UnixUpstream(paths.sds_socket),
                trust_domain,
                connect_timeout="2s",
                max_connection_duration="0s",
                http2=True,
            ),
        },
    )
