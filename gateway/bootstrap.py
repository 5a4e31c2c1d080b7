"""Envoy's configuration from values: ``envoy/bootstrap.jsonc`` with every ``{"$value": name}`` replaced.

Pure but for :func:`load_source`. Values go in as whole JSON values, never as text inside text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config import GatewayConfig
from gateway.connect.envoy import connect_clusters, connect_routes, connect_socket
from gateway.errors import BootstrapError
from gateway.problem import CONTENT_TYPE, problem
from gateway.upstreams import InternalSecrets, Leg, Legs, TlsLeg, UnixLeg, address, discovery_type, transport_socket
from pki.files import read_bounded
from pki.home import Home
from pki.identity import Role

SOURCE = Path(__file__).resolve().parent.parent / "envoy" / "bootstrap.jsonc"

REMOVED_PREFIXES = ("x-sluice-", "x-forwarded-", "x-envoy-", "x-accel-")
"""Request headers that only the gateway itself may write; matched without regard to case."""
REMOVED_HEADERS = (
    "forwarded",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-real-ip",
    "x-request-id",
    "x-rewrite-url",
)
"""Request headers that some server somewhere believes instead of the request itself."""

_LOCAL_DETAILS = {
    400: "The request is not valid HTTP for this gateway.",
    403: "The request was refused.",
    404: "There is no such resource here.",
    408: "The request did not arrive in time.",
    411: "Declare the length of the body (Content-Length).",
    413: "The body is larger than this gateway accepts.",
    426: "This version of HTTP is not served.",
    429: "Too many requests.",
    431: "The headers are larger than this gateway accepts.",
    502: "The cluster gave no valid answer.",
    503: "The cluster cannot answer now; try again.",
    504: "The cluster did not answer in time.",
}


@dataclass(frozen=True, slots=True)
class EnvoyPaths:
    """Files and sockets of one Envoy process."""

    admin_socket: Path
    auth_socket: Path
    rest_socket: Path
    edge_secret: Path
    internal_secrets: InternalSecrets
    access_log: Path
    connect_socket: Path

    @classmethod
    def of(cls, home: Home) -> EnvoyPaths:
        """Where they are in ``home``."""
        return cls(
            admin_socket=home.sockets / "envoy-admin.sock",
            auth_socket=home.sockets / "auth.sock",
            rest_socket=home.sockets / "rest.sock",
            edge_secret=home.run / "envoy" / "edge.json",
            internal_secrets=InternalSecrets(
                certificate=home.run / "envoy" / "internal.json", trust=home.run / "envoy" / "internal-trust.json"
            ),
            access_log=home.logs / "access.jsonl",
            connect_socket=connect_socket(home),
        )


def load_source(path: Path = SOURCE) -> object:
    """Read the configuration source: JSON in which lines that begin with ``//`` are comments."""
    if not path.is_file():
        raise BootstrapError(f"{path} does not exist", "run from a source checkout, or install it beside `gateway`")
    lines = read_bounded(path).decode().splitlines()
    try:
        return json.loads("\n".join("" if line.lstrip().startswith("//") else line for line in lines))
    except ValueError as error:
        raise BootstrapError(f"{path} is not JSON with whole-line comments: {error}") from error


def legs_of(config: GatewayConfig, paths: EnvoyPaths, rest: tuple[str, int] | None = None) -> Legs:
    """Where Envoy finds the auth service and REST; ``rest`` is REST's address, None: its unix socket."""
    auth_leg: Leg = UnixLeg(paths.auth_socket)
    if config.auth_host:
        auth_leg = TlsLeg(config.auth_host, config.auth_port, Role.AUTH)
    return Legs(auth_leg, UnixLeg(paths.rest_socket) if rest is None else TlsLeg(*rest, Role.JOBMANAGER))


def render(source: object, config: GatewayConfig, trust_domain: str, paths: EnvoyPaths, legs: Legs) -> object:
    """The complete bootstrap; raises :class:`BootstrapError` when source and values do not fit each other."""
    values: dict[str, object] = {
        "trust_domain": trust_domain,
        "host": config.host,
        "port": config.port,
        "domains": domains(config),
        "max_connections": config.max_connections,
        "upload_timeout": _seconds(config.upload_timeout),
        "stream_idle_timeout": _seconds(config.stream_idle_timeout),
        "authorization_timeout": _seconds(config.authorization_timeout),
        "admin_socket": str(paths.admin_socket),
        "max_upstream_time": _seconds(config.max_upstream_seconds),
        "auth_type": discovery_type(legs.auth),
        "auth_address": address(legs.auth),
        "auth_transport": transport_socket(legs.auth, trust_domain, paths.internal_secrets),
        "rest_type": discovery_type(legs.rest),
        "rest_address": address(legs.rest),
        "rest_transport": transport_socket(legs.rest, trust_domain, paths.internal_secrets),
        "edge_secret": str(paths.edge_secret),
        "access_log": str(paths.access_log),
        "header_mutations": header_mutations(),
        "routes": [*connect_routes(), *routes(config)],
        "connect_cluster": connect_clusters(paths.connect_socket)[0],
        "local_replies": local_replies(),
    }
    used: set[str] = set()
    bootstrap = _substitute(source, values, used)
    unused = sorted(values.keys() - used)
    if unused:
        raise BootstrapError(f"the bootstrap source leaves out {', '.join(unused)}")
    return bootstrap


def domains(config: GatewayConfig) -> list[str]:
    """Hosts that are served: the names and addresses of the edge certificate."""
    names = dict.fromkeys([*config.server_names, config.host, "127.0.0.1"])
    return [f"[{name}]" if ":" in name else name for name in names]


def header_mutations() -> list[dict[str, object]]:
    """Take out every header a client could use to pass for someone or something else; write the true address.

    Envoy itself would write its own address for a client on the same machine.
    """
    by_prefix: list[dict[str, object]] = [
        {"remove_on_match": {"key_matcher": {"prefix": prefix, "ignore_case": True}}} for prefix in REMOVED_PREFIXES
    ]
    by_name: list[dict[str, object]] = [{"remove": name} for name in REMOVED_HEADERS]
    address = {"key": "x-forwarded-for", "value": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"}
    return [*by_prefix, *by_name, {"append": {"header": address, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}]


def routes(config: GatewayConfig) -> list[dict[str, object]]:
    """Refusals that need no look at the body, then REST.

    Bodies are streamed, never buffered, so their size must be known from ``Content-Length``
    (RFC 9110 section 15.5.12 allows to insist); the HTTP codecs hold the client to what it declared.
    """
    too_large = {"name": "content-length", "range_match": {"start": config.max_request_bytes + 1, "end": 2**63 - 1}}
    undeclared = {"name": "content-length", "present_match": True, "invert_match": True}
    sends_body = {"name": ":method", "string_match": {"safe_regex": {"regex": "POST|PUT"}}}
    chunked = {"name": "transfer-encoding", "present_match": True}
    anywhere = {"prefix": "/"}
    return [
        {"match": anywhere | {"headers": [too_large]}, "direct_response": {"status": 413}},
        {"match": anywhere | {"headers": [chunked]}, "direct_response": {"status": 411}},
        {"match": anywhere | {"headers": [sends_body, undeclared]}, "direct_response": {"status": 411}},
        {"match": anywhere, "route": {"cluster": "rest", "timeout": _seconds(config.request_timeout)}},
    ]


def local_replies() -> dict[str, object]:
    """Problem documents for Envoy's own answers; those of the auth service keep their body."""
    from_auth = {
        "filter": {
            "and_filter": {
                "filters": [
                    {"response_flag_filter": {"flags": ["UAEX"]}},
                    _status_filter("LE", 499),
                ]
            }
        },
        "body_format_override": {
            "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
            "content_type": CONTENT_TYPE,
        },
    }
    by_status = [
        {"filter": _status_filter("EQ", status), "body_format_override": _json_format(problem(status, detail))}
        for status, detail in _LOCAL_DETAILS.items()
    ]
    other: dict[str, object] = {"type": "about:blank", "title": "Refused", "status": "%RESPONSE_CODE%"}
    return {"mappers": [from_auth, *by_status], "body_format": _json_format(other)}


def _status_filter(operation: str, status: int) -> dict[str, object]:
    value = {"default_value": status, "runtime_key": "sluice.unset"}
    return {"status_code_filter": {"comparison": {"op": operation, "value": value}}}


def _json_format(document: Mapping[str, object]) -> dict[str, object]:
    return {"json_format": dict(document), "content_type": CONTENT_TYPE}


def _seconds(value: float) -> str:
    """A protobuf Duration in JSON."""
    return f"{value:.3f}s"


def _substitute(node: object, values: Mapping[str, object], used: set[str]) -> object:
    if isinstance(node, list):
        return [_substitute(item, values, used) for item in node]
    if not isinstance(node, dict):
        return node
    if "$value" not in node:
        return {key: _substitute(item, values, used) for key, item in node.items()}
    name = node["$value"]
    if len(node) != 1 or not isinstance(name, str) or name not in values:
        raise BootstrapError(f"the bootstrap source asks for {node!r}, which nobody gives")
    used.add(name)
    return values[name]
