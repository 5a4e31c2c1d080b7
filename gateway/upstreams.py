"""Envoy's connections to upstreams: a Unix socket, or mutual TLS to another machine.

Pure. There is no third kind, so no configuration can make Envoy send plaintext to a TCP port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.gateway.errors import BootstrapError
from sluice.pki import Role

EDGE_SECRET = "edge"  # noqa: S105  the name of a secret, not a secret
EDGE_TRUST_SECRET = "edge-trust"  # noqa: S105  likewise
EDGE_FILE_SECRET = "edge-file"  # noqa: S105  likewise
ACME_SECRET = "acme"  # noqa: S105  likewise: presented to clients that offer acme-tls/1 but are no ACME validation
ACME_ROUTES = "acme-http-01"
"""The routes of the http-01 listener, served by the same process as the secrets."""
CERTIFICATE_SECRET = "internal"  # noqa: S105  likewise
TRUST_SECRET = "internal-trust"  # noqa: S105  likewise
XDS_CLUSTER = "xds"
"""The source of all Envoy resources except secrets."""
SDS_CLUSTER = "sds"
"""The source of Envoy's secrets."""

KEY_EXCHANGES = ("X25519MLKEM768", "X25519", "P-256")
"""The same as at the edge; OpenSSL before 3.5 selects the second."""

_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_RAW = "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
_MAX_PORT = 65535
KEEPALIVE_INTERVAL = "1s"
KEEPALIVE_TIMEOUT = "2s"


@dataclass(frozen=True, slots=True)
class UnixUpstream:
    """A Unix socket on this machine that only its owner can open."""

    path: Path


@dataclass(frozen=True, slots=True)
class TlsUpstream:
    """A listener of ``role`` at ``host`` (a name or an address). A peer with another role is refused."""

    host: str
    port: int
    role: Role

    def __post_init__(self) -> None:
        if not 0 < self.port <= _MAX_PORT:
            raise BootstrapError(
                f"Envoy cannot reach {self.role} at port {self.port}",
                "set jobmanager.rest_port and gateway.auth_port to the ports that they listen on",
            )
        if (address := _ip(self.host)) is not None and address.is_unspecified:
            raise BootstrapError(
                f"Envoy cannot connect to {self.host}",
                "set jobmanager.rest_host and gateway.auth_host to an address or name that is valid on both machines",
            )


Upstream = UnixUpstream | TlsUpstream


@dataclass(frozen=True, slots=True)
class Upstreams:
    """All upstreams of Envoy. The Spark Connect relay always runs on Envoy's machine.

    Attributes:
        auth: the first auth service.
        more_auth: the other auth services, of the same kind; Envoy may use any of them.
    """

    auth: Upstream
    rest: Upstream
    connect: UnixUpstream
    more_auth: tuple[Upstream, ...] = ()

    @property
    def any_tls(self) -> bool:
        """Whether Envoy needs an internal identity."""
        return isinstance(self.auth, TlsUpstream) or isinstance(self.rest, TlsUpstream)


def discovery_type(*upstreams: Upstream) -> str:
    """Envoy's discovery type. Host names are resolved again periodically, so Envoy follows a process that moves."""
    return (
        "STRICT_DNS"
        if any(isinstance(upstream, TlsUpstream) and _ip(upstream.host) is None for upstream in upstreams)
        else "STATIC"
    )


def address(upstream: Upstream) -> dict[str, object]:
    """The address of the upstream as Envoy's JSON."""
    if isinstance(upstream, UnixUpstream):
        return {"pipe": {"path": str(upstream.path)}}
    return {"socket_address": {"address": upstream.host, "port_value": upstream.port}}


def transport_socket(upstream: Upstream, trust_domain: str, alpn: str = "http/1.1") -> dict[str, object]:
    """The transport socket for the upstream: mutual TLS to another machine, otherwise a raw buffer."""
    if isinstance(upstream, UnixUpstream):
        return {"name": "envoy.transport_sockets.raw_buffer", "typed_config": {"@type": _RAW}}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": _TLS,
            # No session resumption: every connection does a full handshake, which checks the peer against the CRL.
            "max_session_keys": 0,
            "allow_renegotiation": False,
            "common_tls_context": common_tls_context(trust_domain, upstream.role, alpn),
        },
    }


def common_tls_context(trust_domain: str, role: str, alpn: str = "http/1.1") -> dict[str, object]:
    """TLS 1.3 with the certificate of this process, for peers of ``role`` only."""
    # Without the trailing slash, a role whose name starts with this one would match too.
    identity = {"san_type": "URI", "matcher": {"prefix": f"spiffe://{trust_domain}/{role}/"}}
    return {
        "alpn_protocols": [alpn],
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
            "ecdh_curves": list(KEY_EXCHANGES),
        },
        "tls_certificate_sds_secret_configs": [secret_source(CERTIFICATE_SECRET)],
        # Trust anchors and CRLs come as a secret, the role is set here; Envoy checks both.
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": [identity]},
            "validation_context_sds_secret_config": secret_source(TRUST_SECRET),
        },
    }


def acme_secret(name: str) -> str:
    """The name of the secret that Envoy presents in the ACME validation (tls-alpn-01) of this DNS name."""
    return f"{ACME_SECRET}:{name.lower()}"


def secret_source(name: str) -> dict[str, object]:
    """The SDS source of secret ``name``: the process that started Envoy, on the same machine."""
    return {"name": name, "sds_config": local_source()}


def local_source() -> dict[str, object]:
    """The xDS server of the process that started Envoy, on the same machine."""
    return {
        "api_config_source": {
            "api_type": "GRPC",
            "transport_api_version": "V3",
            "set_node_on_first_message_only": True,
            "grpc_services": [grpc_service(SDS_CLUSTER)],
        },
        "resource_api_version": "V3",
        "initial_fetch_timeout": "0s",
    }


def grpc_service(cluster: str) -> dict[str, object]:
    """A gRPC stream to ``cluster`` that reconnects quickly; Envoy's default backoff is five seconds and more."""
    back_off = {"base_interval": "0.1s", "max_interval": "0.5s"}
    return {"envoy_grpc": {"cluster_name": cluster, "retry_policy": {"retry_back_off": back_off}}}


def cluster(
    name: str,
    upstream: Upstream,
    trust_domain: str,
    *,
    connect_timeout: str,
    max_connection_duration: str,
    http2: bool = False,
    replicas: Sequence[Upstream] = (),
    **more: object,
) -> dict[str, object]:
    """One upstream cluster of Envoy, with ``upstream`` and its ``replicas`` (of the same kind) as endpoints.

    Envoy checks a new CRL in handshakes only, so ``max_connection_duration`` limits the age of connections.
    """
    protocol: dict[str, object] = {"http_protocol_options": {}}
    if http2:
        # A replica that hangs without closing its connection must not hold a stream.
        alive = {"connection_keepalive": {"interval": KEEPALIVE_INTERVAL, "timeout": KEEPALIVE_TIMEOUT}}
        protocol = {"http2_protocol_options": alive if replicas else {}}
    endpoints = [{"endpoint": {"address": address(each)}} for each in (upstream, *replicas)]
    return {
        "name": name,
        "type": discovery_type(upstream, *replicas),
        "dns_lookup_family": "ALL",
        "connect_timeout": connect_timeout,
        "transport_socket": transport_socket(upstream, trust_domain, "h2" if http2 else "http/1.1"),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _HTTP,
                "explicit_http_config": protocol,
                "common_http_protocol_options": {"max_connection_duration": max_connection_duration},
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": endpoints}],
        },
        **more,
    }


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
