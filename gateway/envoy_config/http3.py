"""HTTP/3 by choice: a second listener on the same port number of UDP, made from the one for TCP.

Filters, routes, limits and the certificate are the same; what differs is what QUIC has instead of TCP and TLS records.
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
"""How long a client may remember that there is HTTP/3."""

_TRANSPORT = "envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport"
_HTTPS_PORT = 443
_RELIABLE_ONLY = ("transport_socket_connect_timeout",)


def quic_listener(edge: dict[str, Any], config: GatewayConfig) -> dict[str, object]:
    """The listener in JSON, from that for TCP.

    - No early data: a request in it could be sent again by whoever saw it.
    - No client certificates: Envoy does not ask for them over QUIC. Who has one uses TCP.
    - No migration: limits by address would count for an address that the client has left.
    """
    listener = copy.deepcopy(edge)
    listener["name"] = EDGE_QUIC
    listener["address"]["socket_address"]["protocol"] = "UDP"
    # One socket for each worker, or packets would reach workers that know nothing of their connection. That nobody else
    # has the port is what the listener for TCP, and the look before the start, see to.
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
    # QUIC is TLS 1.3 (RFC 9001 section 4.2), whatever is allowed over TCP.
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
    """The value of ``alt-svc`` (RFC 7838): HTTP/3 on the port that clients see."""
    return f'h3=":{urlsplit(config.origin).port or _HTTPS_PORT}"; ma={ALT_SVC_SECONDS}'


def _streams(edge: dict[str, Any]) -> dict[str, object]:
    """The limits of HTTP/2, in the words of QUIC."""
    limits: dict[str, object] = edge["filter_chains"][0]["filters"][0]["typed_config"]["http2_protocol_options"]
    return dict(limits)


def _untyped(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "@type"}
