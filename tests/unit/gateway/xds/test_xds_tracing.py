"""Where Envoy sends its spans, and where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.core.tracing import TracingConfig, TracingUnavailable
from sluice.core.xds.messages import CLUSTER, from_json, to_json
from sluice.gateway.envoy_config.tracing import (
    Collector,
    collector_clusters,
    collector_of,
    tracer,
)

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.fixture
def ca_file(tmp_path: Path) -> str:
    """The path of a file with CA certificates."""
    (tmp_path / "ca.pem").write_text(PEM)
    return str(tmp_path / "ca.pem")


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:4318/v1/traces", "http://[::1]:4318/v1/traces"])
def test_envoy_has_no_tracing_without_an_https_endpoint(endpoint: str, ca_file: str) -> None:
    collector = collector_of(TracingConfig(endpoint=endpoint, ca_file=ca_file))
    assert collector is None
    assert tracer(collector) is None
    assert collector_clusters(collector) == []


@pytest.mark.parametrize("endpoint", ["https:///v1/traces", "https://me:secret@otel.example.com/v1/traces"])
def test_an_endpoint_without_a_host_or_with_credentials_is_refused(endpoint: str, ca_file: str) -> None:
    with pytest.raises(TracingUnavailable):
        collector_of(TracingConfig(endpoint=endpoint, ca_file=ca_file))


def test_an_unreadable_ca_file_makes_tracing_unavailable(tmp_path: Path) -> None:
    with pytest.raises(TracingUnavailable, match="cannot be read"):
        collector_of(TracingConfig(endpoint="https://otel.example.com/v1/traces", ca_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("endpoint", "kind", "names", "port"),
    [
        ("https://otel.example.com:4318/v1/traces", "STRICT_DNS", "DNS", 4318),
        ("https://otel.example.com/v1/traces", "STRICT_DNS", "DNS", 443),
        ("https://[2001:db8::1]:4318/v1/traces", "STATIC", "IP_ADDRESS", 4318),
    ],
)
def test_the_certificate_must_be_for_the_configured_host(
    endpoint: str, kind: str, names: str, port: int, ca_file: str
) -> None:
    collector = collector_of(TracingConfig(endpoint=endpoint, ca_file=ca_file, sampled=0.25))
    assert collector is not None
    (document,) = collector_clusters(collector)
    cluster: dict[str, Any] = to_json(from_json(CLUSTER, document))
    context = cluster["transport_socket"]["typed_config"]
    validation = context["common_tls_context"]["validation_context"]
    assert cluster.get("type", "STATIC") == kind
    assert validation["trusted_ca"] == {"inline_string": PEM}
    assert validation["match_typed_subject_alt_names"] == [{"san_type": names, "matcher": {"exact": collector.host}}]
    assert context.get("sni", "") == (collector.host if kind == "STRICT_DNS" else "")
    (endpoints,) = cluster["load_assignment"]["endpoints"]
    assert endpoints["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"] == port
    assert cluster["wait_for_warm_on_init"] is False


def test_request_urls_are_not_sent_in_spans() -> None:
    tracing = tracer(Collector("https://o/v1/traces", "o", 443, PEM, 0.25))
    assert tracing is not None
    assert tracing["max_path_tag_length"] == 0
    assert tracing["random_sampling"] == {"value": 25.0}
