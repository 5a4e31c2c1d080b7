"""Envoy's configuration for ACME validation.

The filter chains lead to no endpoint, and a listener without TLS exists only if it was chosen.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sluice.core.xds import LISTENER, ROUTES, from_json
from sluice.gateway.config import AcmeConfig, GatewayConfig
from sluice.gateway.envoy_config.acme import (
    acme_clusters,
    http_challenge_listeners,
    http_challenge_routes,
    with_tls_challenges,
)
from sluice.gateway.envoy_config.certificate_file import with_certificate_file
from sluice.gateway.envoy_config.http3 import quic_listener
from sluice.gateway.envoy_config.listeners import SOURCE, edge_listener
from sluice.gateway.envoy_config.templates import load_source
from sluice.pki.x509 import ACME_TLS_PROTOCOL

NAMES = ("sluice.example.com", "SQL.example.com")


def config(challenge: str | None, **more: Any) -> GatewayConfig:
    values = {"directory": "https://acme.test/dir", "terms_of_service_agreed": True, "challenge": challenge}
    acme = None if challenge is None else msgspec.convert(values, AcmeConfig)
    return GatewayConfig(server_names=NAMES, acme=acme, **more)


def edge(settings: GatewayConfig) -> dict[str, Any]:
    return with_tls_challenges(
        with_certificate_file(dict(edge_listener(load_source(SOURCE), settings)), settings), settings
    )


def test_tls_alpn_01_adds_filter_chains_to_a_cluster_without_endpoints() -> None:
    settings = config("tls-alpn-01")
    listener = edge(settings)
    from_json(LISTENER, listener)
    plain, named, *challenges = listener["filter_chains"]
    assert "filter_chain_match" not in plain
    assert named["filter_chain_match"] == {"server_names": ["sluice.example.com", "sql.example.com"]}
    matches = [each["filter_chain_match"] for each in challenges]
    protocols = {"application_protocols": [ACME_TLS_PROTOCOL]}
    assert matches == [
        {"server_names": ["sluice.example.com"], **protocols},
        {"server_names": ["sql.example.com"], **protocols},
        protocols,
    ]
    (nowhere,) = acme_clusters(settings)
    assert "endpoints" not in nowhere["load_assignment"]  # type: ignore[operator]
    for chain in challenges:
        (only,) = chain["filters"]
        assert only["name"] == "envoy.filters.network.tcp_proxy"
        assert only["typed_config"]["cluster"] == nowhere["name"]
        tls = chain["transport_socket"]["typed_config"]["common_tls_context"]
        assert tls["alpn_protocols"] == [ACME_TLS_PROTOCOL]
        assert "validation_context_sds_secret_config" not in tls
    for chain in (plain, named):
        tls = chain["transport_socket"]["typed_config"]["common_tls_context"]
        assert ACME_TLS_PROTOCOL not in tls["alpn_protocols"]


@pytest.mark.parametrize("challenge", [None, "http-01"])
def test_there_is_no_acme_tls_filter_chain_without_tls_alpn_01(challenge: str | None) -> None:
    settings = config(challenge)
    assert ACME_TLS_PROTOCOL not in str(edge(settings))
    assert acme_clusters(settings) == []


def test_the_quic_listener_has_no_acme_tls_filter_chain() -> None:
    settings = config("tls-alpn-01", http3=True)
    listener = with_certificate_file(
        dict(quic_listener(dict(edge_listener(load_source(SOURCE), settings)), settings)), settings
    )
    assert ACME_TLS_PROTOCOL not in str(listener)
    assert len(listener["filter_chains"]) == 2


@pytest.mark.parametrize("challenge", [None, "tls-alpn-01"])
def test_the_plaintext_listener_exists_only_for_http_01(challenge: str | None) -> None:
    assert http_challenge_listeners(config(challenge)) == {}


def test_the_plaintext_listener_has_no_static_routes_or_upgrades() -> None:
    (listener,) = http_challenge_listeners(config("http-01")).values()
    from_json(LISTENER, listener)
    (chain,) = listener["filter_chains"]
    manager = chain["filters"][-1]["typed_config"]
    assert [each["name"] for each in manager["http_filters"]] == ["envoy.filters.http.router"]
    assert manager["codec_type"] == "HTTP1"
    assert "route_config" not in manager
    assert "upgrade_configs" not in manager
    assert listener["address"]["socket_address"]["port_value"] == 80


def test_every_path_is_not_found_without_pending_http_challenges() -> None:
    document: dict[str, Any] = http_challenge_routes({})
    from_json(ROUTES, document)
    (host,) = document["virtual_hosts"]
    assert host["domains"] == ["*"]
    (route,) = host["routes"]
    assert route["match"] == {"prefix": "/"}
    assert route["direct_response"]["status"] == 404
