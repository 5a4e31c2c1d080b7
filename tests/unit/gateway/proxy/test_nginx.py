"""nginx's configuration as text, and the answers that it is given."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from sluice.gateway.config import GatewayConfig
from sluice.gateway.errors import BootstrapError
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.proxy.nginx import (
    PROBLEM_HEADER,
    STATUS_HEADER,
    NginxPaths,
    render_nginx,
)
from sluice.gateway.service.ext_authz import for_nginx
from sluice.gateway.upstreams import TlsUpstream, UnixUpstream, Upstreams
from sluice.pki.spiffe_id import Role

PATHS = NginxPaths(Path("/srv/nginx"), Path("/srv/edge"), Path("/srv/envoy"), Path("/srv/access.jsonl"))
RELAY = UnixUpstream(Path("/run/connect.sock"))
UNIX = Upstreams(UnixUpstream(Path("/run/auth.sock")), UnixUpstream(Path("/run/rest.sock")), RELAY)
NETWORK = Upstreams(
    TlsUpstream("auth.internal", 8082, Role.AUTH), TlsUpstream("rest.internal", 8081, Role.JOBMANAGER), RELAY
)


def test_sockets_listen_address_and_server_names_appear_in_the_configuration() -> None:
    text = render_nginx(GatewayConfig(host="0.0.0.0", port=9443, server_names=("cluster.example",)), PATHS, UNIX)  # noqa: S104
    assert "server unix:/run/auth.sock;" in text
    assert "server unix:/run/rest.sock;" in text
    assert "listen 0.0.0.0:9443 ssl http2 default_server;" in text
    assert "server_name cluster.example 0.0.0.0 127.0.0.1;" in text
    assert "ssl_protocols TLSv1.3;" in text
    assert "proxy_ssl" not in text
    assert "\nuser " not in text


def test_every_upstream_to_another_machine_is_verified_mutual_tls() -> None:
    text = render_nginx(GatewayConfig(), PATHS, NETWORK)
    assert text.count("proxy_ssl_verify on;") == text.count("proxy_pass https:") == 3
    assert text.count("proxy_ssl_certificate /srv/envoy/chain.pem;") == 3
    assert "proxy_ssl_name rest.internal;" in text
    assert "proxy_ssl_name auth.internal;" in text
    assert "proxy_pass https://sluice_rest;" in text
    assert "proxy_pass https://sluice_auth$request_uri;" in text
    assert "http://" not in "".join(line for line in text.splitlines() if "proxy_pass " in line)


def test_ipv6_listener() -> None:
    assert "listen [::1]:8443 ssl" in render_nginx(GatewayConfig(host="::1"), PATHS, UNIX)


def test_the_configured_certificate_file_is_used_only_for_the_server_names() -> None:
    assert render_nginx(GatewayConfig(), PATHS, UNIX).count("ssl_certificate ") == 1
    config = GatewayConfig(server_names=("a.test",), certificate_file="/etc/tls/chain.pem", key_file="/etc/tls/key.pem")
    everybody, _, named = render_nginx(config, PATHS, UNIX).partition("server_name a.test")
    assert everybody.count("ssl_certificate /srv/edge/chain.pem;") == everybody.count("ssl_certificate ") == 1
    assert "ssl_certificate /etc/tls/chain.pem;" in named
    assert "ssl_certificate_key /etc/tls/key.pem;" in named
    with pytest.raises(BootstrapError, match="cannot be given"):
        render_nginx(msgspec.structs.replace(config, key_file="/etc/a;b"), PATHS, UNIX)


def test_the_configuration_of_a_superuser_names_the_user_who_owns_the_sockets() -> None:
    paths = NginxPaths(PATHS.directory, PATHS.edge, PATHS.internal, PATHS.access_log, "cluster")
    assert "\nuser cluster;\n" in render_nginx(GatewayConfig(), paths, UNIX)


@pytest.mark.parametrize("name", ["a b", "a;b", "a{b", "$host", "a\nb", "a'b", 'a"b', "a\\b", "é", "", "~^.*$", "*.a"])
def test_names_and_paths_cannot_inject_configuration(name: str) -> None:
    with pytest.raises(BootstrapError, match="cannot be given"):
        render_nginx(GatewayConfig(server_names=(name,)), PATHS, UNIX)
    if name:
        with pytest.raises(BootstrapError, match="cannot be given"):
            render_nginx(GatewayConfig(), PATHS, Upstreams(UnixUpstream(Path("/run") / name), UNIX.rest, RELAY))


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_upstream_whose_certificate_nginx_cannot_verify_is_refused(host: str) -> None:
    with pytest.raises(BootstrapError, match="nginx cannot verify"):
        render_nginx(GatewayConfig(), PATHS, Upstreams(UNIX.auth, TlsUpstream(host, 8081, Role.JOBMANAGER), RELAY))


def test_configured_limits_appear_in_the_nginx_configuration() -> None:
    config = msgspec.structs.replace(GatewayConfig(), max_request_bytes=12345, request_timeout=7.5, max_connections=9)
    text = render_nginx(config, PATHS, UNIX)
    assert "client_max_body_size 12345;" in text
    assert "proxy_read_timeout 7500ms;" in text
    assert "limit_conn sluice_connections 9;" in text


@pytest.mark.parametrize(
    ("status", "told"), [(400, 403), (401, 401), (403, 403), (404, 403), (429, 403), (500, 403), (503, 403)]
)
def test_a_refusal_becomes_401_or_403_for_nginx_and_keeps_its_status_and_body(status: int, told: int) -> None:
    body = problem_body(status, 'détail with "quotes"\n')
    answer = for_nginx(web.Response(status=status, body=body, content_type=CONTENT_TYPE, headers={"X-Other": "1"}))
    assert answer.status == told
    assert answer.headers[STATUS_HEADER] == str(status)
    assert answer.headers[PROBLEM_HEADER].isascii()
    assert json.loads(answer.headers[PROBLEM_HEADER]) == json.loads(body)


def test_a_refusal_for_nginx_keeps_its_authentication_challenge() -> None:
    answer = for_nginx(web.Response(status=401, body=b"{}", headers={"WWW-Authenticate": "Bearer"}))
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_grant_or_server_error_is_not_changed_for_nginx() -> None:
    for answer in (web.Response(headers={"x-sluice-principal": "ada"}), web.Response(status=500)):
        assert for_nginx(answer) is answer


def test_requests_per_second_of_an_address_are_limited_unless_switched_off() -> None:
    limited = render_nginx(GatewayConfig(address_requests_per_second=50.0), PATHS, UNIX)
    assert "rate=50r/s" in limited
    assert "burst=100 nodelay" in limited
    assert "limit_req" not in render_nginx(GatewayConfig(address_requests_per_second=0.0), PATHS, UNIX)
