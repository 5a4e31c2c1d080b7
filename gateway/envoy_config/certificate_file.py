"""A second filter chain with another authority's certificate, for clients that send one of the gateway's names (SNI).

Clients that connect by address, or send another name or none, get the edge authority's certificate from the first
chain.
"""

from __future__ import annotations

import copy
from typing import Any

from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.json_values import extension
from sluice.gateway.upstreams import EDGE_FILE_SECRET, secret_source

CHAIN = "certificate-file"
_INSPECTOR = extension("tls", "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector")


def with_certificate_file(listener: dict[str, Any], config: GatewayConfig) -> dict[str, Any]:
    """The listener with a copy of its filter chain for ``config.server_names``, which differs only in the certificate.

    Over TCP, a listener filter reads the name from the ClientHello; QUIC needs no such filter.
    """
    if not config.has_named_certificate:
        return listener
    (chain,) = listener["filter_chains"]
    named = copy.deepcopy(chain)
    named["name"] = CHAIN
    named["filter_chain_match"] = {"server_names": sorted({name.lower() for name in config.server_names})}
    transport = named["transport_socket"]["typed_config"]
    tls = transport.get("downstream_tls_context", transport)
    tls["common_tls_context"]["tls_certificate_sds_secret_configs"] = [secret_source(EDGE_FILE_SECRET)]
    over_udp = "udp_listener_config" in listener
    inspector = {} if over_udp else {"listener_filters": [_INSPECTOR], "listener_filters_timeout": _timeout(chain)}
    return {**listener, **inspector, "filter_chains": [chain, named]}


def _timeout(chain: dict[str, Any]) -> object:
    """The timeout of the whole handshake. Clients that have sent no ClientHello by then are disconnected."""
    return chain["transport_socket_connect_timeout"]
