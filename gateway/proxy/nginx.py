"""NGINX instead of Envoy: renders its configuration from the same settings, with the same auth service.

Pure. NGINX can do less than Envoy. It cannot verify SPIFFE IDs, so connections to REST on another machine check a host
name instead. It cannot normalise a path without changing it, so it forwards the path unchanged to the auth service and
to REST, and ambiguous paths are refused.

https://nginx.org/en/docs/http/ngx_http_auth_request_module.html
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import jinja2

from sluice.core import is_ip_address, url_host
from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config import LOCAL_DETAILS, REMOVED_HEADERS, domains
from sluice.gateway.errors import BootstrapError
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.upstreams import TlsUpstream, UnixUpstream, Upstreams

TESTED_WITH = "nginx 1.22.1 with OpenSSL 3.0"
TRUST_FILE = "trust.pem"
CONFIGURATION = "nginx.conf"

PROXY_HEADER = "x-sluice-proxy"
"""Tells the auth service that NGINX asks. Envoy removes this header from client requests."""
PROXY = "nginx"
STATUS_HEADER = "x-sluice-status"
"""The status of a refusal; NGINX itself accepts only 401 and 403 as refusals."""
PROBLEM_HEADER = "x-sluice-problem"
"""The body of a refusal; NGINX drops the body of an ``auth_request`` response."""

FORWARDED = (
    ("Accept", "$http_accept"),
    ("Content-Type", "$http_content_type"),
    ("If-None-Match", "$http_if_none_match"),
    ("Last-Event-ID", "$http_last_event_id"),
    ("Range", "$http_range"),
    ("Traceparent", "$http_traceparent"),
    ("User-Agent", "$http_user_agent"),
)
"""The client headers that REST gets, besides the framing; all others are dropped."""
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
"""Headers that are removed from requests to the auth service, in addition to ``REMOVED_HEADERS``."""

_PLAIN = re.compile(r"[A-Za-z0-9._/:@+=,-]+")
_OWN_STATUSES = (400, 403, 404, 405, 408, 411, 413, 414, 429, 431, 502, 503, 504)
_TEMPLATE = "nginx.conf.jinja"
_REFUSALS = (400, 401, 403, 404, 429)
"""Statuses that the auth service may refuse with; any other becomes 403."""
_DETAILS = {
    401: "This needs a credential.",
    405: "This method is not served.",
    414: "The request target is too long.",
}


@dataclass(frozen=True, slots=True)
class NginxPaths:
    """The files that NGINX reads and writes; it reads its identity directories in place."""

    directory: Path
    edge: Path
    internal: Path
    access_log: Path
    user: str = ""
    """The user that owns the sockets, set when root starts NGINX, whose workers would otherwise run as another user."""


def render_nginx(config: GatewayConfig, paths: NginxPaths, upstreams: Upstreams) -> str:
    """The whole ``nginx.conf``.

    Raises:
        BootstrapError: a path or name would need quoting, or NGINX cannot secure a connection to an upstream.
    """
    return _ENVIRONMENT.get_template(_TEMPLATE).render(
        config=config,
        paths=paths,
        upstreams=upstreams,
        listen=_listen(config),
        names=" ".join(_plain(name, extra="[]") for name in domains(config)),
        removed=sorted({*REMOVED_HEADERS, *WRITTEN_BY_THE_GATEWAY, STATUS_HEADER, PROBLEM_HEADER} - {"x-request-id"}),
    )


def _body(status: int) -> str:
    """The body of NGINX's own response, in single quotes; raises :class:`BootstrapError` when it needs escaping."""
    text = problem_body(status, LOCAL_DETAILS.get(status, _DETAILS.get(status, ""))).decode()
    if any(character in text for character in "$'\\"):
        raise BootstrapError(f"the text {text!r} would need escaping in NGINX's configuration")
    return f"'{text}'"


def _variable(header: str) -> str:
    return header.replace("-", "_")


def _listen(config: GatewayConfig) -> str:
    return f"{_plain(url_host(config.host), extra='[]')}:{config.port}"


def _server(upstream: UnixUpstream | TlsUpstream) -> str:
    if isinstance(upstream, UnixUpstream):
        return f"unix:{_plain(upstream.path)}"
    return f"{_plain(upstream.host)}:{upstream.port}"


def _scheme(upstream: UnixUpstream | TlsUpstream) -> str:
    return "https" if isinstance(upstream, TlsUpstream) else "http"


def _is_tls(upstream: UnixUpstream | TlsUpstream) -> bool:
    """Whether an upstream needs TLS; raises :class:`BootstrapError` when NGINX could not verify the peer."""
    if isinstance(upstream, UnixUpstream):
        return False
    if is_ip_address(upstream.host):
        raise BootstrapError(
            f"nginx cannot verify a certificate for the address {upstream.host}",
            "set jobmanager.rest_host and gateway.auth_host to host names that the certificates contain",
        )
    return True


def _plain(text: str | Path, extra: str = "") -> str:
    """Text that needs no quoting in NGINX's configuration. Other text is refused, which prevents injection."""
    value = str(text)
    if not _PLAIN.fullmatch("".join(character for character in value if character not in extra)):
        raise BootstrapError(f"nginx cannot be given {value!r}", "use a path or name of letters, digits and . _ / -")
    return value


def _milliseconds(value: float) -> str:
    return f"{math.ceil(value * 1000)}ms"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(  # noqa: S701  no HTML: each value is checked by ``plain`` or ``body``
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters.update(
        plain=_plain, body=_body, milliseconds=_milliseconds, server=_server, scheme=_scheme, variable=_variable
    )
    environment.tests["tls"] = _is_tls
    environment.globals.update(
        tested_with=TESTED_WITH,
        content_type=CONTENT_TYPE,
        configuration=CONFIGURATION,
        trust_file=TRUST_FILE,
        proxy=PROXY,
        proxy_header=PROXY_HEADER,
        status_header=STATUS_HEADER,
        problem_header=PROBLEM_HEADER,
        own_statuses=_OWN_STATUSES,
        refusals=_REFUSALS,
        forwarded=FORWARDED,
    )
    return environment


_ENVIRONMENT = _environment()
