"""Envoy's configuration comes out whole, and no value can change its structure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.bootstrap import (
    REMOVED_HEADERS,
    REMOVED_PREFIXES,
    EnvoyPaths,
    domains,
    legs_of,
    load_source,
    local_replies,
    render,
)
from gateway.config import GatewayConfig
from gateway.errors import BootstrapError
from gateway.service import REQUEST_ID_HEADER
from pki.assertions import HEADER
from pki.home import Home

PATHS = EnvoyPaths.of(Home(Path("/home/of/cluster")))


def rendered(
    config: GatewayConfig | None = None, trust_domain: str = "test", rest: tuple[str, int] | None = None
) -> Any:
    config = config or GatewayConfig()
    return render(load_source(), config, trust_domain, PATHS, legs_of(config, PATHS, rest))


def nodes(node: object) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


def found(document: object, key: str) -> list[Any]:
    return [node[key] for node in nodes(document) if key in node]


def test_no_placeholder_is_left() -> None:
    assert found(rendered(), "$value") == []
    json.dumps(rendered())


def test_values_arrive() -> None:
    config = GatewayConfig(host="127.0.0.9", port=9443, authorization_timeout=0.25, max_connections=7)
    document = rendered(config, "cluster.test")
    assert document["node"]["cluster"] == "cluster.test"
    assert document["static_resources"]["listeners"][0]["address"] == {
        "socket_address": {"address": "127.0.0.9", "port_value": 9443}
    }
    assert found(document, "server_uri")[0]["timeout"] == "0.250s"
    assert found(document, "max_active_downstream_connections") == [7]


def test_hostile_value_stays_a_value() -> None:
    hostile = '"}],"admin":{"address":{"socket_address":{"address":"0.0.0.0","port_value":1}}} # \n - x: y'
    document = rendered(trust_domain=hostile)
    assert document["node"]["cluster"] == hostile
    assert document["admin"] == rendered()["admin"]


def test_only_one_listener_and_it_is_the_edge() -> None:
    document = rendered()
    assert [listener["name"] for listener in document["static_resources"]["listeners"]] == ["edge"]
    assert list(document["admin"]["address"]) == ["pipe"]
    assert document["admin"]["address"]["pipe"]["mode"] == 0o600
    for cluster in document["static_resources"]["clusters"]:
        assert found(cluster, "socket_address") == []


def test_legs_across_hosts_are_mutual_tls_and_nothing_else() -> None:
    document = rendered(GatewayConfig(auth_host="auth.internal"), "td", ("192.0.2.7", 8081))
    auth, rest, _ = document["static_resources"]["clusters"]
    assert (auth["type"], rest["type"]) == ("STRICT_DNS", "STATIC")
    for cluster, role in ((auth, "auth"), (rest, "jobmanager")):
        tls = cluster["transport_socket"]["typed_config"]
        assert tls["@type"].endswith(".tls.v3.UpstreamTlsContext")
        assert tls["max_session_keys"] == 0
        assert found(tls, "tls_params")[0]["tls_minimum_protocol_version"] == "TLSv1_3"
        assert found(tls, "match_typed_subject_alt_names") == [
            [{"san_type": "URI", "matcher": {"prefix": f"spiffe://td/{role}/"}}]
        ]
        assert [each["name"] for each in found(tls, "tls_certificate_sds_secret_configs")[0]] == ["internal"]
        assert found(tls, "validation_context_sds_secret_config")[0]["name"] == "internal-trust"
        assert found(cluster, "pipe") == []


def test_legs_on_one_machine_are_sockets_of_the_home() -> None:
    for cluster in rendered()["static_resources"]["clusters"]:
        assert cluster["transport_socket"]["name"] == "envoy.transport_sockets.raw_buffer"
        assert found(cluster, "pipe")[0]["path"].startswith("/")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104  refused
def test_leg_to_everywhere_is_refused(host: str) -> None:
    with pytest.raises(BootstrapError, match="cannot connect to"):
        rendered(rest=(host, 8081))


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_leg_to_no_port_is_refused(port: int) -> None:
    with pytest.raises(BootstrapError, match="is no port"):
        rendered(GatewayConfig(auth_host="auth", auth_port=port))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("failure_mode_allow", [False]),
        ("tls_minimum_protocol_version", ["TLSv1_3"]),
        ("normalize_path", [True]),
        ("merge_slashes", [True]),
        ("path_with_escaped_slashes_action", ["REJECT_REQUEST"]),
        ("headers_with_underscores_action", ["REJECT_REQUEST"]),
        ("enable_reuse_port", [False]),
        ("disable_stateless_session_resumption", [True]),
        ("upgrade_configs", []),
        ("preserve_external_request_id", []),
        ("with_request_body", []),
        ("dynamic_resources", []),
    ],
)
def test_safe_setting_is_as_it_must_be(key: str, expected: list[object]) -> None:
    assert found(rendered(), key) == expected


def test_authorization_comes_before_the_router_and_nothing_switches_it_off() -> None:
    filters = [entry["name"] for entry in found(rendered(), "http_filters")[0]]
    assert filters == ["envoy.filters.http.ext_authz", "envoy.filters.http.router"]
    assert found(rendered(), "typed_per_filter_config") == []


@pytest.mark.parametrize("header", ["x-sluice-principal", HEADER, REQUEST_ID_HEADER, "x-forwarded-host"])
def test_identity_headers_are_among_those_removed(header: str) -> None:
    assert header.startswith(REMOVED_PREFIXES) or header in REMOVED_HEADERS


@pytest.mark.parametrize(
    ("host", "names", "expected"),
    [
        ("127.0.0.1", ("localhost",), ["localhost", "127.0.0.1"]),
        (
            "10.0.0.5",
            ("gateway.example", "alias.example"),
            ["gateway.example", "alias.example", "10.0.0.5", "127.0.0.1"],
        ),
        ("::1", ("localhost",), ["localhost", "[::1]", "127.0.0.1"]),
    ],
)
def test_domains_are_those_of_the_certificate(host: str, names: tuple[str, ...], expected: list[str]) -> None:
    assert domains(GatewayConfig(host=host, server_names=names)) == expected


def test_every_local_reply_is_a_problem_document() -> None:
    for format_ in (*found(local_replies(), "body_format_override"), *found(local_replies(), "body_format")):
        assert format_["content_type"] == "application/problem+json"


def test_source_that_asks_for_something_unknown_is_refused() -> None:
    with pytest.raises(BootstrapError, match="asks for"):
        render({"$value": "secret"}, GatewayConfig(), "test", PATHS, legs_of(GatewayConfig(), PATHS))


def test_source_that_forgets_a_value_is_refused() -> None:
    """A setting that silently has no effect is worse than none."""
    with pytest.raises(BootstrapError, match=r"leaves out .*auth_transport"):
        render({}, GatewayConfig(), "test", PATHS, legs_of(GatewayConfig(), PATHS))


def test_comments_are_whole_lines(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonc"
    source.write_text('// a\n{\n  // b\n  "url": "https://x" \n}\n')
    assert load_source(source) == {"url": "https://x"}


@pytest.mark.parametrize("text", ["", "{", '{"a": 1} // trailing'])
def test_damaged_source_is_refused(tmp_path: Path, text: str) -> None:
    source = tmp_path / "source.jsonc"
    source.write_text(text)
    with pytest.raises(BootstrapError, match="not JSON"):
        load_source(source)


def test_missing_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="does not exist"):
        load_source(tmp_path / "none.jsonc")
