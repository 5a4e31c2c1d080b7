"""The HTTP/3 listener and its advertisement to clients, checked as configuration values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.core.home import Home
from sluice.core.xds.messages import LISTENER, ROUTES, from_json
from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.edge import EdgeInputs, edge_documents
from sluice.gateway.envoy_config.http3 import alternative_service
from sluice.gateway.envoy_config.listeners import SOURCE
from sluice.gateway.envoy_config.routes import Grants
from sluice.gateway.envoy_config.templates import load_source
from sluice.gateway.proxy.bootstrap import EnvoyPaths, upstreams_of

OFF = GatewayConfig()
ON = GatewayConfig(http3=True)


def documents(config: GatewayConfig, directory: Path) -> dict[str, Any]:
    upstreams = upstreams_of(config, EnvoyPaths.of(Home.at(directory)))
    inputs = EdgeInputs(config, "unit.test", upstreams, load_source(SOURCE), (), Grants({}))
    return edge_documents(replace(inputs, config=config))


def test_http3_is_neither_served_nor_advertised_when_it_is_disabled(tmp_path: Path) -> None:
    made = documents(OFF, tmp_path)
    assert list(made[LISTENER]) == ["edge"]
    assert "alt-svc" not in str(made[ROUTES])


def test_the_udp_listener_has_the_same_filters_and_limits_as_the_tcp_listener(tmp_path: Path) -> None:
    listeners = documents(ON, tmp_path)[LISTENER]
    tcp, udp = listeners["edge"], listeners["edge-quic"]
    from_json(LISTENER, udp)
    assert udp["address"]["socket_address"] == {**tcp["address"]["socket_address"], "protocol": "UDP"}
    reliable, quick = (each["filter_chains"][0]["filters"][0]["typed_config"] for each in (tcp, udp))
    changed = {key for key in reliable.keys() | quick.keys() if reliable.get(key) != quick.get(key)}
    assert changed == {"codec_type", "http2_protocol_options", "http3_protocol_options"}
    assert quick["http3_protocol_options"]["quic_protocol_options"] == reliable["http2_protocol_options"]


def test_the_udp_listener_has_no_early_data_client_certificates_or_migration(tmp_path: Path) -> None:
    udp = documents(ON, tmp_path)[LISTENER]["edge-quic"]
    transport = udp["filter_chains"][0]["transport_socket"]["typed_config"]
    tls = transport["downstream_tls_context"]
    assert transport["enable_early_data"] is False
    assert tls["disable_stateless_session_resumption"] is True
    assert not [name for name in tls["common_tls_context"] if "validation" in name]
    options = udp["udp_listener_config"]["quic_options"]
    assert options["send_disable_active_migration"] is True
    assert options["max_sessions_per_event_loop"] == ON.max_connections


def test_alt_svc_advertises_the_port_that_clients_see() -> None:
    assert alternative_service(ON) == 'h3=":8443"; ma=3600'
    assert alternative_service(GatewayConfig(http3=True, public_url="https://sluice.example.com")) == (
        'h3=":443"; ma=3600'
    )


def test_http3_needs_a_fixed_port() -> None:
    with pytest.raises(ValueError, match="http3 needs a fixed port"):
        GatewayConfig(http3=True, port=0)
