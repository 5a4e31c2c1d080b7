"""Settings of the gateway (section ``[gateway]`` of ``sluice.toml``)."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from sluice.gateway.errors import BootstrapError

AUTH_NAME = "auth-1"
"""Process name in the auth service's certificate."""
ENVOY_NAME = "envoy"
"""Process name in the certificate that Envoy shows inside; of several on one machine the first one's name."""
EDGE_NAME = "edge"
"""Name of the gateway's public certificate."""
CONNECT_NAME = "connect"
"""Process name in the certificate of the relay for Spark Connect."""
MAX_AUTH_SERVICES = 8
MAX_ENVOYS = 8
MAX_EXT_AUTHZ_CLIENTS = 64
MAX_AUTH_ADDRESSES = 16
MAX_STORE_HOSTS = 8
MAX_STALE_SECONDS = 60.0
MAX_AUDIT_EXPORTS = 8
MAX_ACME_NAMES = 32
"""A certificate has more in theory; each is validated in every renewal."""
MAX_PASS_SECONDS = 600
"""Shorter than a signing key stays published after its last signature."""
_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
"""Without a wildcard and a dot at the end; no address, which clients do not send (RFC 6066, 3)."""
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}")
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signature algorithms an issuer may use: none with a shared secret, and not ``none``."""


class IssuerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trusted issuer of JWTs. The principal is name_claim with prefix before it. An issuer without a prefix can
    name any principal: several of them, or one beside a user file and client certificates, must agree on names.
    """

    issuer: str
    audience: str
    jwks_url: str = ""
    """Empty: the ``jwks_uri`` of the issuer's discovery document."""
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    name_claim: str = "sub"
    groups_claim: str = "groups"
    prefix: str = ""
    ca_file: str = ""
    """File with the authority of its HTTPS certificate; empty: the system's authorities."""
    max_lifetime: float = 86400.0
    """Longest lifetime of a token; others are refused."""

    def __post_init__(self) -> None:
        check_url("issuer", self.issuer)
        if self.jwks_url:
            check_url("jwks_url", self.jwks_url)
        if not self.audience:
            raise ValueError("audience must not be empty")
        if unknown := set(self.algorithms) - set(ASYMMETRIC):
            raise ValueError(f"algorithms {sorted(unknown)} cannot be allowed; these can: {', '.join(ASYMMETRIC)}")


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OpenID provider that people sign in with. Claims are read as those of :class:`IssuerConfig`."""

    issuer: str
    client_id: str
    client_secret_file: str = ""
    """File (mode 0600) with the client's secret; empty: a public client, which only PKCE protects."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    name_claim: str = "sub"
    groups_claim: str = "groups"
    prefix: str = ""
    ca_file: str = ""

    def __post_init__(self) -> None:
        if not self.client_id:
            raise ValueError("client_id must not be empty")
        if "openid" not in self.scopes:
            raise ValueError("scopes must have 'openid'")
        self.as_issuer()

    def as_issuer(self) -> IssuerConfig:
        """How the provider's ID tokens are verified: their audience is the client (OpenID Connect Core 3.1.3.7)."""
        return IssuerConfig(
            issuer=self.issuer,
            audience=self.client_id,
            algorithms=self.algorithms,
            name_claim=self.name_claim,
            groups_claim=self.groups_claim,
            prefix=self.prefix,
            ca_file=self.ca_file,
        )


class ExtAuthzConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A listener for proxies of your own (Envoy Gateway, Istio, Contour), which ask the auth service by gRPC."""

    host: str
    """Address or host name to listen on."""
    port: int = 8083
    """Port of the first auth service; each further one listens on the next."""
    clients: tuple[str, ...]
    """SPIFFE IDs of the proxies, as in ``spiffe://sluice.local/gateway/edge-1``; nobody else is admitted."""

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("clients must name the proxies that may ask")
        if len(self.clients) > MAX_EXT_AUTHZ_CLIENTS:
            raise ValueError(f"clients has more than {MAX_EXT_AUTHZ_CLIENTS} names")

    def of_number(self, number: int) -> ExtAuthzConfig:
        """That of one of several auth services: the second listens on the next port, and so on."""
        port = self.port + number - 1 if self.port else 0
        return msgspec.structs.replace(self, port=port)


class AuditExportConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who gets a copy of the audit log: every signed record, in order, at least once."""

    name: str
    """Names it in metrics and log lines, and the file that says how far it got: a-z, 0-9 and -."""
    kind: Literal["syslog", "webhook", "otlp"]
    """syslog over TLS (RFC 5425), JSON lines by POST, or OpenTelemetry logs (OTLP over HTTP, JSON)."""
    url: str
    """``tls://siem.example.com:6514`` for syslog; ``https://siem.example.com/ingest`` for the others."""
    ca_file: str = ""
    """Authorities (PEM) of the receiver's certificate; empty: the system's. Its host name is checked, TLS is 1.3."""
    certificate_file: str = ""
    """Certificate chain (PEM) to show to the receiver; empty: none. Read again for each connection."""
    key_file: str = ""
    """Its private key (PEM, mode 0600)."""
    token_file: str = ""
    """File (mode 0600) with a bearer token for webhook and otlp. Read again for each request."""
    requests: bool = True
    """Whether each request of the proxy's access log is sent too, besides the digests that the audit log has."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", self.name):
            raise ValueError(f"name {self.name[:64]!r} must have 1 to 32 of a-z, 0-9 and -, with no - at an end")
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file belong together")
        if self.kind == "syslog":
            if self.token_file:
                raise ValueError("syslog has no token: use certificate_file")
            if not is_tls_url(self.url):
                raise ValueError(f"url {self.url[:200]!r} must be as in tls://siem.example.com:6514")
        else:
            check_url("url", self.url)


class SharedStoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A PostgreSQL database that auth services of several machines share, over TLS 1.3 with a verified certificate."""

    hosts: tuple[str, ...]
    """Servers as ``db.example.com:5432``; the first that takes writes is used. Replicas must be synchronous."""
    database: str = "sluice"
    user: str = "sluice"
    ca_file: str = ""
    """Authorities (PEM) of the servers' certificates; empty: the system's. Host names are checked."""
    certificate_file: str = ""
    """Certificate chain (PEM) to show to the servers (method ``cert`` in pg_hba.conf); empty: none."""
    key_file: str = ""
    """Its private key (PEM, mode 0600)."""
    password_file: str = ""
    """File (mode 0600) with the user's password (SCRAM-SHA-256 alone); empty: none."""
    encryption_key_file: str
    """File (mode 0600) with the key that everything is encrypted with, the same on all machines; see
    ``sluice shared-store create-key``. The database never sees it."""
    stale_after: float = 2.0
    """How many seconds an auth service that cannot reach the database goes on; then it refuses everything (503)."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MAX_STORE_HOSTS:
            raise ValueError(f"hosts must name 1 to {MAX_STORE_HOSTS} servers")
        for each in self.hosts:
            host_and_port("hosts", each)
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file belong together")
        if not self.certificate_file and not self.password_file:
            raise ValueError("certificate_file or password_file must say how to sign in to the database")
        for key in ("ca_file", "certificate_file", "key_file", "password_file", "encryption_key_file"):
            if (path := str(getattr(self, key))) and not path.startswith("/"):
                raise ValueError(f"{key} {path[:200]!r} must be an absolute path")
        if not 0.5 <= self.stale_after <= MAX_STALE_SECONDS:
            raise ValueError(f"stale_after must be 0.5 to {MAX_STALE_SECONDS:.0f} seconds")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The servers as host and port."""
        return [host_and_port("hosts", each) for each in self.hosts]


def host_and_port(key: str, text: str) -> tuple[str, int]:
    """``db.example.com:5432`` or ``[::1]:5432`` in two parts; raises ValueError."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.netloc != text or parts.username is not None:
        raise ValueError(f"{key} has {text[:200]!r}, which must be as in db.example.com:5432")
    return host, port


class AcmeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ACME server (RFC 8555) that certifies server_names, as a public authority. Only with Envoy."""

    directory: str
    """URL of the server's directory: ``https://acme-v02.api.letsencrypt.org/directory``."""
    terms_of_service_agreed: bool = False
    """Whether you agree to the server's terms of service; nothing is asked of it unless this is true."""
    email: str = ""
    """Address for the account, to which some servers write; empty: none."""
    challenge: Literal["tls-alpn-01", "http-01"] = "tls-alpn-01"
    """How the server validates the names: in a TLS handshake on port 443 (RFC 8737), or by a request without TLS on
    port 80, for which Envoy then listens and answers nothing else."""
    http_port: int = 80
    """Port of the listener for http-01, which the server must reach as port 80."""
    ca_file: str = ""
    """Authorities (PEM) of the ACME server's own HTTPS certificate; empty: the system's."""
    eab_key_id: str = ""
    """Key identifier of an external account binding, as the server's operator gave it; empty: none."""
    eab_key_file: str = ""
    """File (mode 0600) with its HMAC key in base64url."""
    key_type: Literal["ecdsa-p256", "ecdsa-p384", "rsa-3072", "rsa-4096"] = "ecdsa-p256"
    """Key of the certificate; a new one with each renewal."""

    def __post_init__(self) -> None:
        check_url("directory", self.directory)
        if not self.terms_of_service_agreed:
            raise ValueError(
                "terms_of_service_agreed must be true: read the terms of the ACME server, to which directory refers"
            )
        if bool(self.eab_key_id) != bool(self.eab_key_file):
            raise ValueError("eab_key_id and eab_key_file belong together")
        for key in ("ca_file", "eab_key_file"):
            if (path := str(getattr(self, key))) and not path.startswith("/"):
                raise ValueError(f"{key} {path[:200]!r} must be an absolute path")
        if self.email and not _EMAIL.fullmatch(self.email):
            raise ValueError(f"email {self.email[:200]!r} must be one address, as in ops@example.com")
        if not 0 < self.http_port < 65536:
            raise ValueError("http_port must be 1 to 65535")


def is_tls_url(url: str) -> bool:
    """Whether ``url`` is a host with TLS, and perhaps its port, and nothing else."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return False
    rest = parts.path.removesuffix("/") or parts.query or parts.fragment or parts.username
    return parts.scheme == "tls" and bool(parts.hostname) and port != 0 and rest in {"", None}


def check_url(key: str, url: str) -> None:
    """Raise ValueError unless ``url`` is HTTPS without credentials, query and fragment."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{key} {url[:200]!r} must be a URL as in https://id.example.com/realm")


def check_asked_names(names: tuple[str, ...]) -> None:
    """Raise ValueError unless ``names`` are what clients can ask for in a TLS handshake: DNS names, at least one."""
    if not names:
        raise ValueError(
            "certificate_file or acme needs server_names: the certificate is shown to clients that ask for one"
        )
    for name in names:
        if not _DNS_NAME.fullmatch(name) or name.rpartition(".")[2].isdigit():
            raise ValueError(
                f"server_names has {name[:253]!r}: with certificate_file or acme they must be plain DNS names"
            )


def auth_names(config: GatewayConfig) -> list[str]:
    """The names of the auth services of one home, the first of which is :data:`AUTH_NAME`."""
    return [f"auth-{number}" for number in range(1, config.auth_services + 1)]


def auth_number(config: GatewayConfig, name: str) -> int:
    """The number of the auth service called ``name``; where there is one, whatever its name, it is 1.

    Raises :class:`~sluice.gateway.errors.BootstrapError` for one that no Envoy would ask.
    """
    if config.auth_services == 1:
        return 1
    names = auth_names(config)
    if name not in names:
        raise BootstrapError(
            f"gateway.auth_services is {config.auth_services}, and {name[:80]!r} is none of {', '.join(names)}",
            "use one of these names, or set gateway.auth_services",
        )
    return names.index(name) + 1


def envoy_names(config: GatewayConfig) -> list[str]:
    """The names of the Envoys of one machine, the first of which is :data:`ENVOY_NAME`."""
    return [ENVOY_NAME, *(f"{ENVOY_NAME}-{number}" for number in range(2, config.envoys + 1))]


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8443
    """Port of Envoy's HTTPS listener; 0 means any free port."""
    server_names: tuple[str, ...] = ("localhost",)
    """DNS names in the edge certificate, besides the listener's address; requests for other hosts are refused."""
    certificate_file: str = ""
    """Path of a certificate chain (PEM, leaf first) of another authority, shown to clients that ask for one of
    server_names; empty: the edge authority's. Watched, and loaded without a restart."""
    key_file: str = ""
    """Path of its private key (PEM, mode 0600; a file of root may be readable by its group)."""
    acme: AcmeConfig | None = None
    """Gets and renews such a certificate for server_names from an ACME server, as a table ``[gateway.acme]``, in place
    of certificate_file and key_file."""
    request_timeout: float = 60.0
    """How long REST may take to answer a request that has arrived completely."""
    header_timeout: float = 10.0
    """How long a TLS handshake, and then the headers of a request, may take."""
    upload_timeout: float = 600.0
    """How long a request may take to arrive, body included."""
    stream_idle_timeout: float = 60.0
    """Longest pause in a request or its answer."""
    idle_timeout: float = 300.0
    """How long a connection without a request is kept."""
    max_request_bytes: int = 256 << 20
    max_connections: int = 1000
    address_requests_per_second: float = 1000.0
    """Requests per second of one address, twice as many in a burst; 0: no limit."""
    principal_requests_per_second: float = 500.0
    """Requests per second of one principal with a short-lived access token, from any address, twice as many in a
    burst; 0: no limit."""
    tls_minimum: Literal["1.2", "1.3"] = "1.3"
    """Oldest TLS version of the gateway; 1.2 only with forward secrecy and AEAD ciphers."""
    http3: bool = False
    """Whether the gateway also answers HTTP/3, on the same port number of UDP; without client certificates there."""
    flight_sql: bool = False
    """Whether the gateway also answers Arrow Flight SQL, for SQL tools and their drivers (ADBC): each principal's
    statements run in its Spark Connect session."""
    cors_origins: tuple[str, ...] = ()
    """Web origins (``https://dashboard.example.org``) whose pages may use this gateway with the user's cookie."""
    auth_host: str = ""
    """Where Envoy reaches the auth service over mutual TLS; empty: on its unix socket, both on one machine."""
    auth_port: int = 8082
    auth_services: int = 1
    """How many auth services of one home answer, on unix sockets; Envoy asks any that is there."""
    auth_addresses: tuple[str, ...] = ()
    """The auth services of several machines as ``auth-a.example.com:8082``, each at its own auth_host and auth_port;
    Envoy asks any that is there. They need a shared_store."""
    shared_store: SharedStoreConfig | None = None
    """The database that auth services of several machines share, as a table ``[gateway.shared_store]``; without it
    they share files of one home."""
    envoys: int = 1
    """How many Envoys serve the same port of one machine; each has an equal share of the limits of requests per
    second."""
    envoy_machines: int = 1
    """On how many machines Envoys like these answer; each Envoy has its share of the limits."""
    ext_authz: ExtAuthzConfig | None = None
    """Where proxies of your own ask by gRPC, as a table ``[gateway.ext_authz]``; without it there is no listener."""
    max_upstream_seconds: float = 3.0
    """How long a connection to REST or the auth service is kept: Envoy checks a new CRL only in handshakes."""
    authorization_timeout: float = 0.5
    """How long Envoy waits for the auth service before it refuses with 503."""
    policy_file: str = ""
    """Path of the policy; empty: gateway/policy.toml in the home if it exists, else the default policy."""
    public_url: str = ""
    """What people type into browsers: ``https://sluice.example.com``; empty: the first server name and the port."""
    oidc: OidcConfig | None = None
    """The provider for signing in, as a table ``[gateway.oidc]``."""
    issuers: tuple[IssuerConfig, ...] = ()
    """Whose JWTs are accepted as bearer tokens, as tables ``[[gateway.issuers]]``."""
    audit_exports: tuple[AuditExportConfig, ...] = ()
    """Where the audit log is also sent, as tables ``[[gateway.audit_exports]]``."""
    pass_lifetime: float = 300.0
    """Lifetime of a short-lived access token (pass), at most 600; then its credential is checked again."""
    session_lifetime: float = 43200.0
    """Lifetime of a session."""
    session_idle: float = 3600.0
    """How long a session may be unused before it ends."""

    def __post_init__(self) -> None:
        if self.public_url:
            check_url("public_url", self.public_url)
            if urlsplit(self.public_url).path:
                raise ValueError("public_url must not have a path")
        self._check_named_certificate()
        if self.http3 and not self.port:
            raise ValueError("http3 needs a fixed port: TCP and UDP have the same one, and 0 is any")
        self._check_replicas()
        if not 10 <= self.pass_lifetime <= MAX_PASS_SECONDS:
            raise ValueError(f"pass_lifetime must be 10 to {MAX_PASS_SECONDS} seconds")
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
            raise ValueError("envoys above 1 share a fixed port of TCP: port must not be 0, nor http3 be on")
        if self.envoys > 1 and self.acme is not None:
            raise ValueError("acme proves names with one Envoy: envoys above 1 need certificate_file instead")

    def _check_named_certificate(self) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file belong together")
        for key in ("certificate_file", "key_file"):
            if (path := str(getattr(self, key))) and not path.startswith("/"):
                raise ValueError(f"{key} {path[:200]!r} must be an absolute path")
        if self.certificate_file and self.acme is not None:
            raise ValueError("certificate_file and the table acme exclude each other")
        if self.has_named_certificate:
            check_asked_names(self.server_names)
        if self.acme is not None and self.acme.challenge == "http-01" and self.acme.http_port == self.port:
            raise ValueError("acme.http_port must be another port than that of the gateway, which speaks TLS")
        if self.acme is not None and len(self.server_names) > MAX_ACME_NAMES:
            raise ValueError(f"server_names has more than {MAX_ACME_NAMES} names, which acme cannot have certified")

    @property
    def auth_places(self) -> list[tuple[str, int]]:
        """Where the auth services are that are reached over the network, as host and port; empty: on sockets."""
        if self.auth_addresses:
            return [host_and_port("auth_addresses", each) for each in self.auth_addresses]
        return [(self.auth_host, self.auth_port)] if self.auth_host else []

    @property
    def has_several_auth_services(self) -> bool:
        """Whether another one can be asked when one does not answer."""
        return self.auth_services > 1 or len(self.auth_addresses) > 1

    @property
    def has_named_certificate(self) -> bool:
        """Whether clients that ask for one of server_names see the certificate of another authority."""
        return bool(self.certificate_file) or self.acme is not None

    @property
    def origin(self) -> str:
        """The gateway as browsers see it, without a slash at the end."""
        default = f"https://{self.server_names[0] if self.server_names else self.host}:{self.port}"
        return self.public_url or default.removesuffix(":443")
