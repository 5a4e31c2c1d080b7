"""Access log lines for outgoing connections of jobs: one line per CONNECT request.

The egress listener logs refused requests at once; an internal listener logs allowed connections when they end.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.gateway.envoy_config.json_values import extension

ACCESS_LOG_FILE = "access/access.jsonl"
"""Relative to the home, Envoy's working directory, because this server may run on another machine."""
EGRESS_OPERATION = "egress.connect"

_FILE = "envoy.extensions.access_loggers.file.v3.FileAccessLog"
_EXT_AUTHZ = "envoy.filters.http.ext_authz"
_WOULD = "%DYNAMIC_METADATA(envoy.filters.network.rbac:shadow_engine_result)%"
"""In mode ``audit``: the result that enforcement would have had."""
_COMMON: Mapping[str, str] = {
    "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%",
    "operation": EGRESS_OPERATION,
    "method": "CONNECT",
    "flags": "%RESPONSE_FLAGS%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
}


def refused_log() -> dict[str, object]:
    """Log of refused CONNECT requests, and of requests with another method."""
    fields = {
        **_COMMON,
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:AUTHORITY)%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "peer": "%DOWNSTREAM_PEER_URI_SAN%",
        "principal": f"%DYNAMIC_METADATA({_EXT_AUTHZ}:owner)%",
        "credential": f"%DYNAMIC_METADATA({_EXT_AUTHZ}:job)%",
        "process": f"%DYNAMIC_METADATA({_EXT_AUTHZ}:process)%",
        "decision": "deny",
        "status": "%RESPONSE_CODE%",
        "reason": "%RESPONSE_CODE_DETAILS%",
        "tls": "%DOWNSTREAM_TLS_VERSION%",
    }
    refused = {"comparison": {"op": "GE", "value": {"default_value": 300, "runtime_key": "egress.refused"}}}
    return {**_file(fields), "filter": {"status_code_filter": refused}}


def tunnel_log(facts: Mapping[str, str]) -> dict[str, object]:
    """Log of allowed connections, written when they end; ``facts`` are the facts about the CONNECT request."""
    return _file({**_COMMON, **_of(facts), "server_name": "%REQUESTED_SERVER_NAME%", "status": "200", "would": _WOULD})


def host_log(facts: Mapping[str, str]) -> dict[str, object]:
    """Log of plain HTTP requests in a tunnel that were for another host."""
    fields = {**_COMMON, **_of(facts), "server_name": "%REQ(:AUTHORITY)%", "decision": "deny", "status": "403"}
    denied = {
        "filter": "envoy.filters.http.rbac",
        "path": [{"key": "enforced_engine_result"}],
        "value": {"string_match": {"exact": "denied"}},
    }
    return {**_file(fields), "filter": {"metadata_filter": {"matcher": denied, "match_if_key_not_found": False}}}


def _of(facts: Mapping[str, str]) -> dict[str, str]:
    return {
        "path": facts["authority"],
        "principal": facts["owner"],
        "credential": facts["job"],
        "process": facts["process"],
        "rule": facts["rule"],
        "request_id": facts["request_id"],
        "address": facts["address"],
        "reason": "%CONNECTION_TERMINATION_DETAILS%",
        "failure": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
    }


def _file(fields: Mapping[str, str]) -> dict[str, object]:
    return extension("envoy.access_loggers.file", _FILE, path=ACCESS_LOG_FILE, log_format={"json_format": fields})
