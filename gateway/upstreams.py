"""Envoy's legs inwards, to the auth service and to REST: a unix socket, or mutual TLS to another machine.

Pure. There is no third kind, so that no configuration makes Envoy speak plaintext to a port.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import BootstrapError
from pki.identity import Role

CERTIFICATE_SECRET = "internal"  # noqa: S105  the name of a secret, not a secret
TRUST_SECRET = "internal-trust"  # noqa: S105  likewise

KEY_EXCHANGES = ("X25519MLKEM768", "X25519", "P-256")
"""As at the edge; OpenSSL before 3.5 takes the second."""

_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_RAW = "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
_MAX_PORT = 65535


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
    """Both of them."""

    auth: Leg
    rest: Leg

    @property
    def any_tls(self) -> bool:
        """Whether Envoy needs an identity of the internal side."""
        return isinstance(self.auth, TlsLeg) or isinstance(self.rest, TlsLeg)


@dataclass(frozen=True, slots=True)
class InternalSecrets:
    """The files (file SDS) with Envoy's own certificate, and with what it trusts inside."""

    certificate: Path
    trust: Path


def discovery_type(leg: Leg) -> str:
    """Names are looked up again and again, so that a process that moves is found."""
    return "STRICT_DNS" if isinstance(leg, TlsLeg) and _ip(leg.host) is None else "STATIC"


def address(leg: Leg) -> dict[str, object]:
    """The leg's endpoint."""
    if isinstance(leg, UnixLeg):
        return {"pipe": {"path": str(leg.path)}}
    return {"socket_address": {"address": leg.host, "port_value": leg.port}}


def raw_socket() -> dict[str, object]:
    """A socket on this machine needs no TLS."""
    return {"name": "envoy.transport_sockets.raw_buffer", "typed_config": {"@type": _RAW}}


def transport_socket(leg: Leg, trust_domain: str, secrets: InternalSecrets) -> dict[str, object]:
    """How the leg is protected: mutual TLS when it leaves the machine."""
    if isinstance(leg, UnixLeg):
        return raw_socket()
    # The trailing slash: without it a role whose name begins alike would do.
    identity = {"san_type": "URI", "matcher": {"prefix": f"spiffe://{trust_domain}/{leg.role}/"}}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": _TLS,
            # No resumption: every connection is a full handshake, in which a revoked peer is refused.
            "max_session_keys": 0,
            "allow_renegotiation": False,
            "common_tls_context": {
                "alpn_protocols": ["http/1.1"],
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                    "ecdh_curves": list(KEY_EXCHANGES),
                },
                "tls_certificate_sds_secret_configs": [_from_file(CERTIFICATE_SECRET, secrets.certificate)],
                # Anchors and revocation lists come from the file, the role from here: both must hold.
                "combined_validation_context": {
                    "default_validation_context": {"match_typed_subject_alt_names": [identity]},
                    "validation_context_sds_secret_config": _from_file(TRUST_SECRET, secrets.trust),
                },
            },
        },
    }


def _from_file(name: str, path: Path) -> dict[str, object]:
    return {
        "name": name,
        "sds_config": {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"},
    }


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
