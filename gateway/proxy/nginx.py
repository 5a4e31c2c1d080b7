"""NGINX in Envoy's place: its configuration from the same settings, asking the same auth service about every request.

Pure. nginx knows less than Envoy, and the configuration says where: it cannot read SPIFFE IDs, so that the leg to REST
on another machine checks a host name; it cannot normalise a path without changing it, so that the path goes to the auth
service and to REST as it came, and every one that could be read in two ways is refused.

https://nginx.org/en/docs/http/ngx_http_auth_request_module.html
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.headers import REMOVED_HEADERS
from sluice.gateway.envoy_config.replies import LOCAL_DETAILS
from sluice.gateway.envoy_config.routes import domains
from sluice.gateway.errors import BootstrapError
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.upstreams import Legs, TlsLeg, UnixLeg

PROVEN = "nginx 1.22.1 with OpenSSL 3.0"
TRUST_FILE = "trust.pem"
CONFIGURATION = "nginx.conf"

PROXY_HEADER = "x-sluice-proxy"
"""Says to the auth service who asks; what Envoy forwards has no such header."""
PROXY = "nginx"
STATUS_HEADER = "x-sluice-status"
"""The status of a refusal: for nginx itself only 401 and 403 are refusals."""
PROBLEM_HEADER = "x-sluice-problem"
"""The body of a refusal, for nginx drops that of an ``auth_request``."""

FORWARDED = (
    ("Accept", "$http_accept"),
    ("Content-Type", "$http_content_type"),
    ("If-None-Match", "$http_if_none_match"),
    ("Last-Event-ID", "$http_last_event_id"),
    ("Range", "$http_range"),
    ("Traceparent", "$http_traceparent"),
    ("User-Agent", "$http_user_agent"),
)
"""What REST gets of the client's headers, beside the framing: nothing else passes, whatever it is called."""
WRITTEN_BY_THE_GATEWAY = (
    "x-sluice-principal",
    "x-sluice-roles",
    "x-sluice-assertion",
    "x-sluice-request-id",
    "x-sluice-credential",
    "x-sluice-pass-id",
    "x-forwarded-client-cert",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-envoy-original-path",
    "x-envoy-original-method",
)
"""What the auth service must not get from a client, besides ``REMOVED_HEADERS``."""

_PLAIN = re.compile(r"[A-Za-z0-9._/:@+=,-]+")
_OWN_STATUSES = (400, 403, 404, 405, 408, 411, 413, 414, 429, 431, 502, 503, 504)
_REFUSALS = (400, 401, 403, 404, 429)
"""Statuses that the auth service may refuse with; any other becomes 403."""
_DETAILS = {
    401: "This needs a credential.",
    405: "This method is not served.",
    414: "The request target is too long.",
}


@dataclass(frozen=True, slots=True)
class NginxPaths:
    """Files that nginx reads and writes; the directories of its identities are read in place."""

    directory: Path
    edge: Path
    internal: Path
    access_log: Path
    user: str = ""
    """Whose sockets they are, when nginx is started by the superuser; its workers would be somebody else's."""


def render(config: GatewayConfig, paths: NginxPaths, legs: Legs) -> str:
    """The whole ``nginx.conf``.

    Raises:
        BootstrapError: a path or name that would need quoting, or a leg that nginx cannot protect.
    """
    names = " ".join(_plain(name, extra="[]") for name in domains(config))
    return f"""\
# Sluice's gateway with NGINX; written by `sluice gateway render --proxy nginx`, proven with {PROVEN}.
# Check and start it as the user that the cluster runs as (the sockets are that user's alone):
#   nginx -t -p {_plain(paths.directory)} -c {CONFIGURATION}
#   nginx -p {_plain(paths.directory)} -c {CONFIGURATION}
# After a renewal or rotation of its certificates: nginx -s reload (with the same -p and -c).
# Not as with Envoy: revoking a token counts at the next request, and limits per principal do not exist here.

{f"user {_plain(paths.user)};" if paths.user else ""}
worker_processes auto;
pid {_plain(paths.directory)}/nginx.pid;
error_log stderr warn;

events {{
    worker_connections {2 * config.max_connections + 64};
}}

http {{
    default_type {CONTENT_TYPE};
    types {{}}
    server_tokens off;
{_temporary(paths.directory)}
    # One line for each request, taken over into the audit log (docs/reference/audit-log.md); a path without its query.
    map $request_uri $sluice_path {{
        "~^(?<sluice_before>[^?]*)" $sluice_before;
        default "";
    }}
    map $sluice_assertion $sluice_decision {{
        "" deny;
        default allow;
    }}
    log_format sluice escape=json '{{"time":"$time_iso8601","request_id":"$request_id","address":"$remote_addr",'
        '"method":"$request_method","path":"$sluice_path","principal":"$sluice_principal",'
        '"decision":"$sluice_decision","status":$status,"reason":"$sluice_status","tls":"$ssl_protocol"}}';
    access_log {_plain(paths.access_log)} sluice;

    # Slow loris: headers, body, any pause, and what a client does not fetch.
    client_header_timeout 10s;
    client_body_timeout {_seconds(config.stream_idle_timeout)};
    send_timeout {_seconds(config.stream_idle_timeout)};
    keepalive_timeout 300s;
    client_header_buffer_size 4k;
    large_client_header_buffers 4 8k;
    client_max_body_size {config.max_request_bytes};
    http2_max_concurrent_streams 100;
    limit_conn_zone $server_name zone=sluice_connections:1m;
    limit_conn sluice_connections {config.max_connections};
    limit_conn_status 503;

    ssl_certificate {_plain(paths.edge)}/chain.pem;
    ssl_certificate_key {_plain(paths.edge)}/key.pem;
    ssl_protocols TLSv1.3;
    ssl_session_tickets off;
    ssl_session_cache off;
    ssl_conf_command NumTickets 0;

    # A body must declare its length: it is streamed, never buffered (RFC 9110 section 15.5.12).
    map "$request_method:$http_content_length:$http_transfer_encoding" $sluice_undeclared {{
        "~^[^:]*:[^:]*:." 1;
        "~^(?:POST|PUT|PATCH|DELETE)::" $sluice_body_expected;
        default 0;
    }}
    map $request_method $sluice_body_expected {{
        "~^(?:POST|PUT)$" 1;
        default 0;
    }}

    # What the auth service says about a refusal: its status, and the body for the caller.
    map $sluice_status $sluice_code {{
{_codes()}        default 403;
    }}
{_bodies()}
{_cache_control()}
    upstream sluice_auth {{
        server {_server(legs.auth)};
        keepalive 64;
    }}
    upstream sluice_rest {{
        server {_server(legs.rest)};
        keepalive 64;
    }}

    # A name that is not ours (DNS rebinding) reaches nothing.
    server {{
        listen {_listen(config)} ssl http2 default_server;
        server_name _;
        set $sluice_principal "";
        set $sluice_assertion "";
        set $sluice_status "";
        set $sluice_problem "";
{_error_pages(())}
        location / {{
            return 404 {_quoted(_body(404))};
        }}
{_own_answers()}
    }}

    server {{
        listen {_listen(config)} ssl http2;
        server_name {names};
        # The path goes on as it came; nothing of it is decoded, merged or resolved.
        merge_slashes off;
{_error_pages(_REFUSALS)}
        location / {{
            if ($sluice_undeclared) {{ return 411; }}
            if ($http_upgrade) {{ return 400; }}
            if ($request_uri ~ "[^!-~]") {{ return 400; }}

            auth_request /.sluice/check;
            auth_request_set $sluice_principal $upstream_http_x_sluice_principal;
            auth_request_set $sluice_assertion $upstream_http_x_sluice_assertion;
            auth_request_set $sluice_status $upstream_http_{_variable(STATUS_HEADER)};
            auth_request_set $sluice_problem $upstream_http_{_variable(PROBLEM_HEADER)};
            auth_request_set $sluice_challenge $upstream_http_www_authenticate;

            proxy_pass {_scheme(legs.rest)}://sluice_rest;
{_protected(legs.rest, paths)}
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_connect_timeout 5s;
            proxy_read_timeout {_seconds(config.request_timeout)};
            proxy_send_timeout {_seconds(config.stream_idle_timeout)};
            # A name may have several addresses; what changes something is not sent twice.
            proxy_next_upstream error;
            # The secret ends here, and so does whatever else the client called itself.
            proxy_pass_request_headers off;
            proxy_set_header Host localhost;
            proxy_set_header Connection "";
            proxy_set_header Content-Length $content_length;
{_forwarded()}
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto https;
            proxy_set_header X-Request-Id $request_id;
            proxy_set_header X-Sluice-Request-Id $request_id;
            proxy_set_header X-Sluice-Principal $sluice_principal;
            proxy_set_header X-Sluice-Assertion $sluice_assertion;
            proxy_hide_header X-Content-Type-Options;
            proxy_hide_header X-Request-Id;
            proxy_hide_header Server;
            add_header X-Content-Type-Options nosniff always;
            add_header X-Request-Id $request_id always;
            add_header Cache-Control $sluice_cache_control always;
        }}

        # Signing in and exchanging credentials: the auth service's own pages; it looks at who asks by itself.
        location ^~ /auth/ {{
            if ($http_upgrade) {{ return 400; }}
            proxy_pass {_scheme(legs.auth)}://sluice_auth$request_uri;
{_protected(legs.auth, paths)}
            proxy_http_version 1.1;
            proxy_connect_timeout {_seconds(config.authorization_timeout)};
            proxy_read_timeout {_seconds(config.request_timeout)};
            proxy_send_timeout {_seconds(config.request_timeout)};
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_set_header Upgrade "";
            proxy_set_header Expect "";
{_removed()}
            proxy_set_header X-Request-Id $request_id;
            proxy_set_header X-Forwarded-For $remote_addr;
        }}

        location = /.sluice/check {{
            internal;
            proxy_pass {_scheme(legs.auth)}://sluice_auth$request_uri;
{_protected(legs.auth, paths)}
            proxy_method $request_method;
            proxy_http_version 1.1;
            proxy_pass_request_body off;
            proxy_connect_timeout {_seconds(config.authorization_timeout)};
            proxy_read_timeout {_seconds(config.authorization_timeout)};
            proxy_send_timeout {_seconds(config.authorization_timeout)};
            proxy_next_upstream error;
            proxy_buffer_size 16k;
            proxy_buffers 4 16k;
            proxy_set_header Host auth;
            proxy_set_header Connection "";
            proxy_set_header Content-Length "";
            proxy_set_header Transfer-Encoding "";
            proxy_set_header Upgrade "";
            proxy_set_header Expect "";
            # All values of Authorization arrive there: two are refused.
{_removed()}
            proxy_set_header X-Request-Id $request_id;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header {PROXY_HEADER} {PROXY};
        }}
{_own_answers()}
    }}
}}
"""


def _temporary(directory: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "".join(f"    {kind}_temp_path {_plain(directory)}/temporary;\n" for kind in kinds)


def _error_pages(refusals: Iterable[int]) -> str:
    """Uniform bodies. A failure to ask (500, for nginx) is 503; plaintext on this port gets no answer at all."""
    lines = [
        f"        error_page {status} /.sluice/{status};\n" for status in _OWN_STATUSES if status not in {403, 431}
    ]
    lines += [
        "        error_page 494 =431 /.sluice/431;\n",
        "        error_page 500 =503 /.sluice/503;\n",
        "        error_page 495 496 =400 /.sluice/400;\n",
        "        error_page 497 =444 /.sluice/444;\n",
    ]
    if refusals:
        lines += [
            "        error_page 401 =401 /.sluice/refused/401;\n",
            "        error_page 403 = /.sluice/refused/$sluice_code;\n",
        ]
        lines += [
            f"""
        location = /.sluice/refused/{status} {{
            internal;
{_answer_headers(challenge=status == 401)}            return {status} $sluice_body_{status};
        }}
"""
            for status in refusals
        ]
    return "".join(lines)


def _own_answers() -> str:
    answers = "".join(
        f"""\
        location = /.sluice/{status} {{
            internal;
{_answer_headers()}            return {status} {_quoted(_body(status))};
        }}
"""
        for status in _OWN_STATUSES
    )
    return (
        answers
        + """\
        location = /.sluice/444 {
            internal;
            return 444;
        }"""
    )


def _answer_headers(*, challenge: bool = False) -> str:
    lines = [
        "            add_header X-Content-Type-Options nosniff always;\n",
        "            add_header X-Request-Id $request_id always;\n",
        "            add_header Cache-Control no-store always;\n",
    ]
    if challenge:
        lines.append("            add_header WWW-Authenticate $sluice_challenge always;\n")
    return "".join(lines)


def _codes() -> str:
    return "".join(f"        {status} {status};\n" for status in _REFUSALS)


def _bodies() -> str:
    """The auth service's own body for each status; a general one when it gave none."""
    return "".join(
        f"""\
    map $sluice_problem $sluice_body_{status} {{
        "" {_quoted(_body(status))};
        default $sluice_problem;
    }}
"""
        for status in _REFUSALS
    )


def _cache_control() -> str:
    return """\
    map $upstream_http_cache_control $sluice_cache_control {
        "" no-store;
        default "";
    }
"""


def _body(status: int) -> str:
    return problem_body(status, LOCAL_DETAILS.get(status, _DETAILS.get(status, ""))).decode()


def _quoted(text: str) -> str:
    """In single quotes; there is no variable, quote or backslash in our own texts."""
    if any(character in text for character in "$'\\"):
        raise BootstrapError(f"nginx cannot be given the text {text!r}")
    return f"'{text}'"


def _forwarded() -> str:
    lines = (f"            proxy_set_header {name} {variable};" for name, variable in FORWARDED)
    return "\n".join(lines)


def _removed() -> str:
    names = sorted({*REMOVED_HEADERS, *WRITTEN_BY_THE_GATEWAY, STATUS_HEADER, PROBLEM_HEADER} - {"x-request-id"})
    return "\n".join(f'            proxy_set_header {name} "";' for name in names)


def _variable(header: str) -> str:
    return header.replace("-", "_")


def _listen(config: GatewayConfig) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{_plain(host, extra='[]')}:{config.port}"


def _server(leg: UnixLeg | TlsLeg) -> str:
    if isinstance(leg, UnixLeg):
        return f"unix:{_plain(leg.path)}"
    return f"{_plain(leg.host)}:{leg.port}"


def _scheme(leg: UnixLeg | TlsLeg) -> str:
    return "https" if isinstance(leg, TlsLeg) else "http"


def _protected(leg: UnixLeg | TlsLeg, paths: NginxPaths) -> str:
    """Mutual TLS as the gateway. nginx sees the host name of who answers, and not its SPIFFE ID."""
    if isinstance(leg, UnixLeg):
        return "            # A socket that its owner alone can open."
    if _is_address(leg.host):
        raise BootstrapError(
            f"nginx cannot verify a certificate for the address {leg.host}",
            "set jobmanager.rest_host and gateway.auth_host to names that are in the certificates",
        )
    return f"""\
            proxy_ssl_certificate {_plain(paths.internal)}/chain.pem;
            proxy_ssl_certificate_key {_plain(paths.internal)}/key.pem;
            proxy_ssl_trusted_certificate {_plain(paths.directory)}/{TRUST_FILE};
            proxy_ssl_verify on;
            proxy_ssl_verify_depth 1;
            proxy_ssl_name {_plain(leg.host)};
            proxy_ssl_server_name on;
            proxy_ssl_protocols TLSv1.3;
            proxy_ssl_session_reuse off;"""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _plain(text: str | Path, extra: str = "") -> str:
    """Text that needs no quoting in nginx's configuration; everything else is refused, so that nothing is injected."""
    value = str(text)
    if not _PLAIN.fullmatch("".join(character for character in value if character not in extra)):
        raise BootstrapError(f"nginx cannot be given {value!r}", "use a path or name of letters, digits and . _ / -")
    return value


def _seconds(value: float) -> str:
    return f"{math.ceil(value * 1000)}ms"
