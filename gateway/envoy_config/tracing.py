"""Envoy's tracing: one span per request, between the client's span and REST's.

Envoy exports spans over HTTPS only, to a collector whose certificate it verifies. A plaintext collector on the same
machine gets the spans of all other processes but none of Envoy's, because Envoy has no plaintext upstreams.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sluice.core import StoreError, TracingConfig, TracingUnavailable, is_ip_address, read_bounded
from sluice.gateway.envoy_config.json_values import extension, seconds, typed

CLUSTER = "traces"
CONNECT_TIMEOUT_SECONDS = 5.0
EXPORT_TIMEOUT_SECONDS = 5.0
MAX_REQUESTS = 16
"""Maximum number of concurrent exports; more are dropped, because tracing must not delay requests."""
MAX_ANCHORS_BYTES = 2 << 20
ROUTE_OPERATION = "%METADATA(ROUTE:sluice:operation)%"

_HTTPS_PORT = 443
_OPENTELEMETRY = "envoy.config.trace.v3.OpenTelemetryConfig"
_RESOURCE = "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.StaticConfigResourceDetectorConfig"
_TLS = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector of spans. ``anchors`` (PEM) verify ``host``; ``sampled`` is the sampled share of traces begun."""

    url: str
    host: str
    port: int
    anchors: str
    sampled: float


def collector_of(config: TracingConfig) -> Collector | None:
    """The collector for Envoy; None when Envoy exports no spans.

    Raises:
        TracingUnavailable: the endpoint is invalid, or the CA certificates to verify it cannot be read.
    """
    parts = urlsplit(config.endpoint)
    if parts.scheme != "https":
        return None
    if not parts.hostname or parts.username is not None:
        raise TracingUnavailable(f"tracing.endpoint is {config.endpoint[:200]!r}", "https://host:port/v1/traces")
    try:
        anchors = read_bounded(Path(config.authorities), MAX_ANCHORS_BYTES).decode("ascii")
    except (StoreError, UnicodeDecodeError) as error:
        raise TracingUnavailable(
            f"the CA certificates of the trace collector cannot be read: {error}", "see tracing.ca_file"
        ) from error
    return Collector(config.endpoint, parts.hostname, parts.port or _HTTPS_PORT, anchors, config.sampled)


def tracer(collector: Collector | None) -> dict[str, object] | None:
    """``tracing`` of the HTTP connection manager.

    A client's ``traceparent`` decides whether its trace is recorded. Spans contain the path without the query.
    """
    if collector is None:
        return None
    service = {
        "http_uri": {"uri": collector.url, "cluster": CLUSTER, "timeout": seconds(EXPORT_TIMEOUT_SECONDS)},
    }
    resource = extension(
        "envoy.tracers.opentelemetry.resource_detectors.static_config",
        _RESOURCE,
        attributes={"service.instance.id": "gateway/envoy"},
    )
    return {
        "client_sampling": {"value": 0},
        "random_sampling": {"value": 100 * collector.sampled},
        # Envoy's own URL tag would include the query, so it is cut off before the path.
        "max_path_tag_length": 0,
        "operation": f"edge {ROUTE_OPERATION}",
        "custom_tags": [
            {"tag": "operation", "value": ROUTE_OPERATION},
            {"tag": "path", "value": "%PATH(NQ)%"},
        ],
        "provider": extension(
            "envoy.tracers.opentelemetry",
            _OPENTELEMETRY,
            http_service=service,
            service_name="sluice",
            resource_detectors=[resource],
        ),
    }


def collector_clusters(collector: Collector | None) -> list[dict[str, object]]:
    """The cluster for exports: TLS to a server with a certificate for the configured host."""
    if collector is None:
        return []
    numeric = is_ip_address(collector.host)
    names = {"san_type": "IP_ADDRESS" if numeric else "DNS", "matcher": {"exact": collector.host}}
    context = typed(
        _TLS,
        max_session_keys=0,
        allow_renegotiation=False,
        common_tls_context={
            "alpn_protocols": ["http/1.1"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
            "validation_context": {
                "trusted_ca": {"inline_string": collector.anchors},
                "match_typed_subject_alt_names": [names],
            },
        },
        **({} if numeric else {"sni": collector.host}),
    )
    endpoint = {"address": {"socket_address": {"address": collector.host, "port_value": collector.port}}}
    limits = {"max_connections": MAX_REQUESTS, "max_pending_requests": MAX_REQUESTS, "max_requests": MAX_REQUESTS}
    return [
        {
            "name": CLUSTER,
            "type": "STATIC" if numeric else "STRICT_DNS",
            "dns_lookup_family": "ALL",
            # The gateway starts even when the collector's name cannot be resolved.
            "wait_for_warm_on_init": False,
            "connect_timeout": seconds(CONNECT_TIMEOUT_SECONDS),
            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context},
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                    _HTTP, explicit_http_config={"http_protocol_options": {}}
                )
            },
            "circuit_breakers": {"thresholds": [limits]},
            "load_assignment": {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}]},
        }
    ]
