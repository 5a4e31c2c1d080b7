"""The edge listener: TLS, HTTP and their limits, built from ``envoy/listener.jsonc``."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.egress_log import ACCESS_LOG_FILE
from sluice.gateway.envoy_config.filters import ROUTE_NAMESPACE, http_filters
from sluice.gateway.envoy_config.headers import ACCESS_TOKEN_ID, CREDENTIAL, PRINCIPAL, ROLE, header_mutations
from sluice.gateway.envoy_config.json_values import FROM_XDS, seconds
from sluice.gateway.envoy_config.replies import local_replies
from sluice.gateway.envoy_config.templates import DIRECTORY, fill
from sluice.gateway.envoy_config.tracing import Collector, tracer
from sluice.gateway.errors import BootstrapError
from sluice.gateway.upstreams import EDGE_SECRET, EDGE_TRUST_SECRET, secret_source

SOURCE = DIRECTORY / "listener.jsonc"
EDGE = "edge"
"""Name of the listener and of its routes."""

TLS_1_2_CIPHERS = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
)
"""Cipher suites when TLS 1.2 is allowed: only forward secrecy with AEAD (RFC 9325 section 4.2)."""


def edge_listener(source: object, config: GatewayConfig, collector: Collector | None = None) -> dict[str, object]:
    """The edge listener in JSON; spans go to ``collector``."""
    listener = fill(
        source,
        {
            "host": config.host,
            "port": config.port,
            "reuse_port": config.envoys > 1,
            "header_timeout": seconds(config.header_timeout),
            "idle_timeout": seconds(config.idle_timeout),
            "upload_timeout": seconds(config.upload_timeout),
            "stream_idle_timeout": seconds(config.stream_idle_timeout),
            "edge_secret": secret_source(EDGE_SECRET),
            "edge_trust": secret_source(EDGE_TRUST_SECRET),
            "tls_minimum": {"1.2": "TLSv1_2", "1.3": "TLSv1_3"}[config.tls_minimum],
            "tls_1_2_ciphers": list(TLS_1_2_CIPHERS),
            "header_mutations": header_mutations(),
            "access_log": ACCESS_LOG_FILE,
            "log_fields": log_fields(),
            "tracing": tracer(collector),
            "local_replies": local_replies(),
            "http_filters": http_filters(config),
            "from_xds": FROM_XDS,
        },
    )
    if not isinstance(listener, dict):
        raise BootstrapError("the source of the listener is not an object")
    return listener


def log_fields() -> Mapping[str, object]:
    """The fields of an access log line. The path has no query, because a query may contain secrets."""
    return {
        "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "method": "%REQ(:METHOD)%",
        "path": "%PATH(NQ)%",
        "operation": f"%METADATA(ROUTE:{ROUTE_NAMESPACE}:operation)%",
        "principal": f"%REQ({PRINCIPAL})%",
        "credential": f"%REQ({CREDENTIAL})%",
        "pass_id": f"%REQ({ACCESS_TOKEN_ID})%",
        "roles": f"%REQ({ROLE})%",
        # Envoy's own decision (allowed, denied or none), and whether the auth service had decided before.
        "decision": "%DYNAMIC_METADATA(envoy.filters.http.rbac:enforced_engine_result)%",
        "asked": "%DYNAMIC_METADATA(envoy.filters.http.ext_authz:x-sluice-operation)%",
        "status": "%RESPONSE_CODE%",
        "reason": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "upstream": "%UPSTREAM_CLUSTER%",
        "protocol": "%PROTOCOL%",
        "tls": "%DOWNSTREAM_TLS_VERSION%",
        "received_bytes": "%BYTES_RECEIVED%",
        "sent_bytes": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
    }
