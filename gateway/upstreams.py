"""Envoy's legs inwards: a unix socket, or mutual TLS to another machine.

Pure. There is no third kind, so that no configuration makes Envoy speak plaintext to a port.
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
ACME_SECRET = "acme"  # noqa: S105  likewise: what a client sees that offers acme-tls/1 and is no validation
ACME_ROUTES = "acme-http-01"
"""The routes of the listener for http-01, given by the same process as the secrets."""
CERTIFICATE_SECRET = "internal"  # noqa: S105  likewise
TRUST_SECRET = "internal-trust"  # noqa: S105  likewise
XDS_CLUSTER = "xds"
"""Where Envoy gets everything but secrets."""
SDS_CLUSTER = "sds"
"""Where Envoy gets secrets."""

KEY_EXCHANGES = ("X25519MLKEM768", "X25519", "P-256")
"""As at the edge; OpenSSL before 3.5 takes the second."""

_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_RAW = "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
_MAX_PORT = 65535
KEEPALIVE_INTERVAL = "1s"
KEEPALIVE_TIMEOUT = "2s"


@dataclass(frozen=True, slots=True)
class UnixLeg:
    """A socket on this machine that its owner alone can open."""

    path: Path


@dataclass(frozen=True, slots=True)
class TlsLeg:
    """A listener of ``role`` at ``host`` (a name or an address); whatever else answers there is refused."""

    host: str
    port: int
    role: Role

    def __post_init__(self) -> None:
        if not 0 < self.port <= _MAX_PORT:
            raise BootstrapError(
                f"{self.port} is no port at which Envoy can reach {self.role}",
                "set jobmanager.rest_port and gateway.auth_port to the ports that they listen on",
            )
        if (address := _ip(self.host)) is not None and address.is_unspecified:
            raise BootstrapError(
                f"Envoy cannot connect to {self.host}",
                "set jobmanager.rest_host and gateway.auth_host to what means the same on both machines",
            )


Leg = UnixLeg | TlsLeg


@dataclass(frozen=True, slots=True)
class Legs:
    """All of them; the relay for Spark Connect is on Envoy's machine.

    Attributes:
        auth: the first auth service.
        more_auth: the others, of the same kind, each as good as the first.
    """

    auth: Leg
    rest: Leg
    connect: UnixLeg
    more_auth: tuple[Leg, ...] = ()

    @property
    def any_tls(self) -> bool:
        """Whether Envoy needs an identity of the internal side."""
        return isinstance(self.auth, TlsLeg) or isinstance(self.rest, TlsLeg)


def discovery_type(*legs: Leg) -> str:
    """Names are looked up again and again, so that a process that moves is found."""
    return "STRICT_DNS" if any(isinstance(leg, TlsLeg) and _ip(leg.host) is None for leg in legs) else "STATIC"


def address(leg: Leg) -> dict[str, object]:
    """The leg's endpoint."""
    if isinstance(leg, UnixLeg):
        return {"pipe": {"path": str(leg.path)}}
    return {"socket_address": {"address": leg.host, "port_value": leg.port}}


def transport_socket(leg: Leg, trust_domain: str, alpn: str = "http/1.1") -> dict[str, object]:
    """How the leg is protected: mutual TLS when it leaves the machine."""
    if isinstance(leg, UnixLeg):
        return {"name": "envoy.transport_sockets.raw_buffer", "typed_config": {"@type": _RAW}}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": _TLS,
            # No resumption: every connection is a full handshake, in which a revoked peer is refused.
            "max_session_keys": 0,
            "allow_renegotiation": False,
            "common_tls_context": common_tls_context(trust_domain, leg.role, alpn),
        },
    }


def common_tls_context(trust_domain: str, role: str, alpn: str = "http/1.1") -> dict[str, object]:
    """TLS 1.3 with peers of this role, and the certificate of this process."""
    # The trailing slash: without it a role whose name begins alike would do.
    identity = {"san_type": "URI", "matcher": {"prefix": f"spiffe://{trust_domain}/{role}/"}}
    return {
        "alpn_protocols": [alpn],
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
            "ecdh_curves": list(KEY_EXCHANGES),
        },
        "tls_certificate_sds_secret_configs": [secret_source(CERTIFICATE_SECRET)],
        # Anchors and revocation lists come as a secret, the role from here: both must hold.
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": [identity]},
            "validation_context_sds_secret_config": secret_source(TRUST_SECRET),
        },
    }


def acme_secret(name: str) -> str:
    """The secret that is shown in the validation (tls-alpn-01) of this DNS name."""
    return f"{ACME_SECRET}:{name.lower()}"


def secret_source(name: str) -> dict[str, object]:
    """Where Envoy gets the secret ``name``: from the process that started it, on the same machine."""
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
    """A stream to ``cluster`` that comes back quickly; Envoy's own pause is five seconds and more."""
    back_off = {"base_interval": "0.1s", "max_interval": "0.5s"}
    return {"envoy_grpc": {"cluster_name": cluster, "retry_policy": {"retry_back_off": back_off}}}


def cluster(
    name: str,
    leg: Leg,
    trust_domain: str,
    *,
    connect_timeout: str,
    max_connection_duration: str,
    http2: bool = False,
    replicas: Sequence[Leg] = (),
    **more: object,
) -> dict[str, object]:
    """One upstream of Envoy: at ``leg``, or at any of ``replicas``, which are of the same kind.

    A new revocation list counts in handshakes only, so no connection outlives it for long.
    """
    protocol: dict[str, object] = {"http_protocol_options": {}}
    if http2:
        # One of several that says nothing any more, without having ended, must not hold a stream.
        alive = {"connection_keepalive": {"interval": KEEPALIVE_INTERVAL, "timeout": KEEPALIVE_TIMEOUT}}
        protocol = {"http2_protocol_options": alive if replicas else {}}
    endpoints = [{"endpoint": {"address": address(each)}} for each in (leg, *replicas)]
    return {
        "name": name,
        "type": discovery_type(leg, *replicas),
        "dns_lookup_family": "ALL",
        "connect_timeout": connect_timeout,
        "transport_socket": transport_socket(leg, trust_domain, "h2" if http2 else "http/1.1"),
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
