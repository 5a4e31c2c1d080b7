"""Settings of the gateway (section ``[gateway]`` of ``sluice.toml``)."""

from __future__ import annotations

import math
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from sluice.gateway.config.acme import AcmeConfig
from sluice.gateway.config.audit_export import AuditExportConfig
from sluice.gateway.config.checks import check_absolute, check_asked_names, check_together, check_url, host_and_port
from sluice.gateway.config.ext_authz import ExtAuthzConfig
from sluice.gateway.config.issuers import IssuerConfig, OidcConfig
from sluice.gateway.config.shared_store import SharedStoreConfig
from sluice.gateway.errors import BootstrapError

AUTH_NAME = "auth-1"
"""Process name in the auth service's certificate."""
ENVOY_NAME = "envoy"
"""Process name in Envoy's internal certificate. If there are several Envoys on a machine, the name of the first."""
EDGE_NAME = "edge"
"""Name of the gateway's public certificate."""
CONNECT_NAME = "connect"
"""Process name in the certificate of the relay for Spark Connect."""
MAX_AUTH_SERVICES = 8
MAX_ENVOYS = 8
MAX_AUTH_ADDRESSES = 16
MAX_AUDIT_EXPORTS = 8
MAX_ACME_NAMES = 32
"""A certificate can have more names, but each renewal validates all of them."""
MAX_ACCESS_TOKEN_SECONDS = 600
"""Must be shorter than the time that a signing key stays published after its last signature."""


def auth_names(config: GatewayConfig) -> list[str]:
    """The names of the auth services of one home. The first is :data:`AUTH_NAME`."""
    return [f"auth-{number}" for number in range(1, config.auth_services + 1)]


def auth_number(config: GatewayConfig, name: str) -> int:
    """The number of the auth service called ``name``. If there is only one, it is 1 for any name.

    Raises :class:`~sluice.gateway.errors.BootstrapError` for a name that no Envoy would use.
    """
    if config.auth_services == 1:
        return 1
    names = auth_names(config)
    if name not in names:
        raise BootstrapError(
            f"gateway.auth_services is {config.auth_services}, so {name[:80]!r} is none of {', '.join(names)}",
            "use one of these names, or set gateway.auth_services",
        )
    return names.index(name) + 1


def envoy_names(config: GatewayConfig) -> list[str]:
    """The names of the Envoys of one machine. The first is :data:`ENVOY_NAME`."""
    return [ENVOY_NAME, *(f"{ENVOY_NAME}-{number}" for number in range(2, config.envoys + 1))]


_TIMES = (
    *("request_timeout", "header_timeout", "upload_timeout", "stream_idle_timeout", "idle_timeout"),
    *("max_upstream_seconds", "authorization_timeout", "session_lifetime", "session_idle"),
)
_SHORTEST_SECONDS = 0.001
"""To Envoy, zero means no limit."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8443
    """Port of Envoy's HTTPS listener; 0 means any free port."""
    server_names: tuple[str, ...] = ("localhost",)
    """DNS names in the edge certificate beside the listener's address. Requests for other hosts are refused."""
    certificate_file: str = ""
    """Path of a certificate chain (PEM, leaf first) from another CA, for clients that request one of server_names by
    SNI; empty: the edge authority's certificate. Changes are loaded without a restart."""
    key_file: str = ""
    """Path of its private key (PEM, mode 0600; a file owned by root may be readable by its group)."""
    acme: AcmeConfig | None = None
    """Gets and renews such a certificate for server_names from an ACME server, as a table ``[gateway.acme]``. Replaces
    certificate_file and key_file."""
    request_timeout: float = 60.0
    """How long REST may take to answer after the complete request has arrived."""
    header_timeout: float = 10.0
    """How long a TLS handshake may take, and after that the headers of a request."""
    upload_timeout: float = 600.0
    """How long a request may take to arrive, including its body."""
    stream_idle_timeout: float = 60.0
    """Longest pause within a request or its answer."""
    idle_timeout: float = 300.0
    """How long a connection without a request is kept open."""
    max_request_bytes: int = 256 << 20
    max_connections: int = 1000
    address_requests_per_second: float = 1000.0
    """Requests per second from one address, twice as many in a burst; 0: no limit."""
    principal_requests_per_second: float = 500.0
    """Requests per second of one principal with a short-lived access token, from any address, twice as many in a
    burst; 0: no limit."""
    tls_minimum: Literal["1.2", "1.3"] = "1.3"
    """Oldest TLS version of the gateway. 1.2 is limited to forward secrecy and AEAD ciphers."""
    http3: bool = False
    """Whether the gateway also serves HTTP/3, on the same port number over UDP, without client certificates."""
    flight_sql: bool = False
    """Whether the gateway also serves Arrow Flight SQL, for SQL tools and their drivers (ADBC). Statements of a
    principal run in its Spark Connect session."""
    cors_origins: tuple[str, ...] = ()
    """Web origins (``https://dashboard.example.org``) whose pages may use this gateway with the user's cookie."""
    auth_host: str = ""
    """Host name at which Envoy reaches the auth service over mutual TLS; empty: a unix socket on the same machine."""
    auth_port: int = 8082
    auth_services: int = 1
    """How many auth services of one home run, on unix sockets. Envoy uses any that is available."""
    auth_addresses: tuple[str, ...] = ()
    """The auth services of several machines as ``auth-a.example.com:8082``, each with its own auth_host and auth_port.
    Envoy uses any that is available. They need a shared_store."""
    shared_store: SharedStoreConfig | None = None
    """The database that auth services of several machines share, as a table ``[gateway.shared_store]``. Without it,
    they share files of one home."""
    envoys: int = 1
    """How many Envoys serve the same port of one machine. Each has an equal share of the limits of requests per
    second."""
    envoy_machines: int = 1
    """On how many machines such Envoys run. Each Envoy has its share of the limits."""
    ext_authz: ExtAuthzConfig | None = None
    """Where your own proxies call the auth service by gRPC, as a table ``[gateway.ext_authz]``; without it: nowhere."""
    max_upstream_seconds: float = 3.0
    """How long a connection to REST or the auth service is kept. Envoy checks a new CRL only in handshakes."""
    authorization_timeout: float = 0.5
    """How long Envoy waits for the auth service before it refuses the request with 503."""
    policy_file: str = ""
    """Path of the policy; empty: gateway/policy.toml in the home if it exists, else the default policy."""
    public_url: str = ""
    """URL that users type into browsers: ``https://sluice.example.com``; empty: the first server name and the port."""
    oidc: OidcConfig | None = None
    """The OpenID provider for sign-in, as a table ``[gateway.oidc]``."""
    issuers: tuple[IssuerConfig, ...] = ()
    """Issuers whose JWTs are accepted as bearer tokens, as tables ``[[gateway.issuers]]``."""
    audit_exports: tuple[AuditExportConfig, ...] = ()
    """Receivers to which the audit log is exported, as tables ``[[gateway.audit_exports]]``."""
    pass_lifetime: float = 300.0
    """Lifetime of a short-lived access token, at most 600. After that, its credential is checked again."""
    session_lifetime: float = 43200.0
    """Lifetime of a session."""
    session_idle: float = 3600.0
    """Idle timeout of a session."""

    def __post_init__(self) -> None:
        for key in _TIMES:
            if not _SHORTEST_SECONDS <= getattr(self, key) < math.inf:  # also refuses NaN
                raise ValueError(f"{key} must be a positive number of seconds")
        for key in ("address_requests_per_second", "principal_requests_per_second"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be a positive number, or 0 for no limit")
        if self.public_url:
            check_url("public_url", self.public_url)
            if urlsplit(self.public_url).path:
                raise ValueError("public_url must not have a path")
        self._check_named_certificate()
        if self.http3 and not self.port:
            raise ValueError("http3 needs a fixed port: TCP and UDP use the same one, and 0 means any free port")
        self._check_replicas()
        if not 10 <= self.pass_lifetime <= MAX_ACCESS_TOKEN_SECONDS:
            raise ValueError(f"pass_lifetime must be 10 to {MAX_ACCESS_TOKEN_SECONDS} seconds")
        if len({each.issuer for each in self.issuers}) != len(self.issuers):
            raise ValueError("issuers has the same issuer twice")
        if len({each.name for each in self.audit_exports}) != len(self.audit_exports):
            raise ValueError("audit_exports has the same name twice")
        if len(self.audit_exports) > MAX_AUDIT_EXPORTS:
            raise ValueError(f"audit_exports has more than {MAX_AUDIT_EXPORTS} tables")

    def _check_replicas(self) -> None:
        if not 1 <= self.auth_services <= MAX_AUTH_SERVICES:
            raise ValueError(f"auth_services must be 1 to {MAX_AUTH_SERVICES}")
        if self.auth_services > 1 and self.auth_host:
            raise ValueError("auth_services above 1 share a home and its unix sockets: auth_host must be empty")
        if self.auth_addresses and (self.auth_services > 1 or not self.auth_host or self.shared_store is None):
            raise ValueError("auth_addresses needs auth_host and the table shared_store, and auth_services to be 1")
        if len(self.auth_addresses) > MAX_AUTH_ADDRESSES:
            raise ValueError(f"auth_addresses has more than {MAX_AUTH_ADDRESSES} addresses")
        if len(set(self.auth_addresses)) != len(self.auth_addresses):
            raise ValueError("auth_addresses has the same address twice")
        for each in self.auth_addresses:
            host_and_port("auth_addresses", each)
        if not 1 <= self.envoy_machines <= MAX_AUTH_ADDRESSES:
            raise ValueError(f"envoy_machines must be 1 to {MAX_AUTH_ADDRESSES}")
        if not 1 <= self.envoys <= MAX_ENVOYS:
            raise ValueError(f"envoys must be 1 to {MAX_ENVOYS}")
        if self.envoys > 1 and (not self.port or self.http3):
            raise ValueError("envoys above 1 share a fixed TCP port: port must not be 0, and http3 must be off")
        if self.envoys > 1 and self.acme is not None:
            raise ValueError("acme proves names with one Envoy: envoys above 1 need certificate_file instead")

    def _check_named_certificate(self) -> None:
        check_together(self, "certificate_file", "key_file")
        check_absolute(self, "certificate_file", "key_file")
        if self.certificate_file and self.acme is not None:
            raise ValueError("certificate_file and the table acme exclude each other")
        if self.has_named_certificate:
            check_asked_names(self.server_names)
        if self.acme is not None and self.acme.challenge == "http-01" and self.acme.http_port == self.port:
            raise ValueError("acme.http_port must be another port than the gateway's, which uses TLS")
        if self.acme is not None and len(self.server_names) > MAX_ACME_NAMES:
            raise ValueError(f"server_names has more than {MAX_ACME_NAMES} names, the limit for acme")

    @property
    def auth_places(self) -> list[tuple[str, int]]:
        """Host and port of each auth service that is reached over the network; empty if they use unix sockets."""
        if self.auth_addresses:
            return [host_and_port("auth_addresses", each) for each in self.auth_addresses]
        return [(self.auth_host, self.auth_port)] if self.auth_host else []

    @property
    def has_several_auth_services(self) -> bool:
        """Whether Envoy can use another auth service when one does not answer."""
        return self.auth_services > 1 or len(self.auth_addresses) > 1

    @property
    def has_named_certificate(self) -> bool:
        """Whether clients that request one of server_names by SNI get a certificate from another CA."""
        return bool(self.certificate_file) or self.acme is not None

    @property
    def origin(self) -> str:
        """The origin of the gateway as browsers see it, without a trailing slash."""
        default = f"https://{self.server_names[0] if self.server_names else self.host}:{self.port}"
        return self.public_url or default.removesuffix(":443")
