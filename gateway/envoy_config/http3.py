"""Optional HTTP/3: a second listener on the same port number over UDP, derived from the TCP listener.

Filters, routes, limits and the certificate are the same; only the QUIC transport differs.
"""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import urlsplit

from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.json_values import seconds, typed

EDGE_QUIC = "edge-quic"
"""Name of the listener."""
ALT_SVC_SECONDS = 3600
"""How long a client may remember that HTTP/3 is available."""

_TRANSPORT = "envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport"
_HTTPS_PORT = 443
_RELIABLE_ONLY = ("transport_socket_connect_timeout",)


def quic_listener(edge: dict[str, Any], config: GatewayConfig) -> dict[str, object]:
    """The QUIC listener in JSON, derived from the TCP listener ``edge``.

    - No early data (0-RTT): an attacker could replay a request in it.
    - No client certificates: Envoy does not request them over QUIC. Clients with a certificate use TCP.
    - No connection migration: rate limits per address would apply to an address that the client has left.
    """
    listener = copy.deepcopy(edge)
    listener["name"] = EDGE_QUIC
    listener["address"]["socket_address"]["protocol"] = "UDP"
    # Each worker needs its own socket, or packets would reach workers that do not know their connection. The TCP
    # listener and the port check before the start ensure that no other process uses the port.
    listener["enable_reuse_port"] = True
    listener["udp_listener_config"] = {
        "quic_options": {
            "quic_protocol_options": _streams(edge),
            "idle_timeout": seconds(config.idle_timeout),
            "crypto_handshake_timeout": seconds(config.header_timeout),
            "send_disable_active_migration": True,
            "max_sessions_per_event_loop": config.max_connections,
        }
    }
    (chain,) = listener["filter_chains"]
    for name in _RELIABLE_ONLY:
        del chain[name]
    tls = chain["transport_socket"]["typed_config"]
    common = tls["common_tls_context"]
    common["alpn_protocols"] = ["h3"]
    del common["validation_context_sds_secret_config"]
    # QUIC requires TLS 1.3 (RFC 9001 section 4.2), even when TCP allows TLS 1.2.
    common["tls_params"] = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}
    chain["transport_socket"] = {
        "name": "envoy.transport_sockets.quic",
        "typed_config": typed(_TRANSPORT, downstream_tls_context=_untyped(tls), enable_early_data=False),
    }
    manager = chain["filters"][0]["typed_config"]
    manager["codec_type"] = "HTTP3"
    manager["http3_protocol_options"] = {"quic_protocol_options": _streams(edge)}
    del manager["http2_protocol_options"]
    return listener


def alternative_service(config: GatewayConfig) -> str:
    """The value of ``alt-svc`` (RFC 7838): HTTP/3 on the port that clients connect to."""
    return f'h3=":{urlsplit(config.origin).port or _HTTPS_PORT}"; ma={ALT_SVC_SECONDS}'


def _streams(edge: dict[str, Any]) -> dict[str, object]:
    """The HTTP/2 limits as QUIC protocol options."""
    limits: dict[str, object] = edge["filter_chains"][0]["filters"][0]["typed_config"]["http2_protocol_options"]
    return dict(limits)


def _untyped(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "@type"}
