"""Envoy's part in the traces, when they are configured: one span for each request, between the client's and REST's.

Spans leave over HTTPS alone, to a collector that proves to be the one that is configured. A collector that is reached
in plaintext on one's own machine gets the spans of all other processes, and none of Envoy's: it has no such leg.
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
"""Exports under way; more are dropped, as traces are no reason to hold requests."""
MAX_ANCHORS_BYTES = 2 << 20
ROUTE_OPERATION = "%METADATA(ROUTE:sluice:operation)%"

_HTTPS_PORT = 443
_OPENTELEMETRY = "envoy.config.trace.v3.OpenTelemetryConfig"
_RESOURCE = "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.StaticConfigResourceDetectorConfig"
_TLS = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector of spans; ``anchors`` (PEM) verify ``host``, ``sampled`` is the share of traces begun here."""

    url: str
    host: str
    port: int
    anchors: str
    sampled: float


def collector_of(config: TracingConfig) -> Collector | None:
    """The collector as Envoy reaches it; None: no spans of Envoy.

    Raises:
        TracingUnavailable: nobody would vouch for it.
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
            f"the authorities for traces cannot be read: {error}", "see tracing.ca_file"
        ) from error
    return Collector(config.endpoint, parts.hostname, parts.port or _HTTPS_PORT, anchors, config.sampled)


def tracer(collector: Collector | None) -> dict[str, object] | None:
    """``tracing`` of the HTTP connection manager.

    Who sends ``traceparent`` has decided whether the trace is recorded. Of the path goes along what has no query.
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
        # Envoy's own tag with the URL would have the query as well: it ends before the path.
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
    """The upstream for exports: TLS to a server with a certificate for the configured host."""
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
            # The gateway opens whether or not the collector's name is known.
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
