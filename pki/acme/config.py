"""Settings of the ACME server (table ``[ca.acme]`` of ``sluice.toml``)."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from sluice.core import PkiError, is_ip_address
from sluice.pki.acme.names import parse_patterns

MAX_ENTRIES = 256


class AcmeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Programs such as certbot get certificates for host names from the edge authority, by RFC 8555.

    No process of the cluster accepts such a certificate: it has no identity in it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    """HTTPS with a server certificate, TLS 1.3, no client certificate. 0: any free port."""
    url: str = ""
    """As clients reach it, ``https://acme.internal.example:8446``. Empty: host and port. Its host is in the server's
    certificate."""
    names: tuple[str, ...] = ()
    """What may be certified: a host name, ``*.internal.example`` for everything below (wildcards too, by dns-01), or a
    network for addresses. Empty: nothing."""
    except_names: tuple[str, ...] = ()
    """Exceptions from ``names``. Names of the gateway in this home, and this server's own, are never certified."""
    networks: tuple[str, ...] = ()
    """Where the authority connects for http-01 and tls-alpn-01. Loopback, private, link-local and metadata addresses
    are included only by a network within their block: ``0.0.0.0/0`` does not include ``10.0.0.0/8``. Empty: it connects
    nowhere, and only dns-01 succeeds."""
    resolvers: tuple[str, ...] = ()
    """DNS servers for all challenges: ``10.0.0.53`` or ``10.0.0.53:5353``. Empty: those of the machine."""
    lifetime_days: Annotated[float, msgspec.Meta(ge=1 / 24, le=398)] = 90.0
    """Lifetime of certificates, at most ``pki.max_leaf_hours``."""
    external_account_required: bool = True
    """Whether a new account needs a key of ``sluice pki acme account create``."""
    http01_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 80
    """Port of http-01, for tests and port forwarding: RFC 8555 requires that clients are reachable at port 80."""
    tls_alpn01_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 443
    """Port of tls-alpn-01, for tests and port forwarding: RFC 8737 requires port 443."""

    def __post_init__(self) -> None:
        if max(map(len, (self.names, self.except_names, self.networks, self.resolvers))) > MAX_ENTRIES:
            raise ValueError(f"names, except_names, networks and resolvers have at most {MAX_ENTRIES} entries each")
        try:
            parse_patterns((*self.names, *self.except_names))
        except PkiError as error:
            raise ValueError(f"names or except_names: {error}") from error
        for network in self.networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ValueError(f"networks: {network[:80]!r} is not a network, as 10.0.0.0/8") from error
        for resolver in self.resolvers:
            parse_resolver(resolver)
        if not _is_base_url(self.url):
            raise ValueError("url must be as https://acme.internal.example:8446, without a slash at the end")


def _is_base_url(url: str) -> bool:
    if not url:
        return True
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    rest = parts.path or parts.query or parts.fragment or parts.username is not None
    return parts.scheme == "https" and bool(parts.hostname) and not rest


def parse_resolver(text: str) -> tuple[str, int]:
    """Address and port of a DNS server; :class:`ValueError` when it is none."""
    host, port = text, "53"
    if not is_ip_address(text):
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
    if not is_ip_address(host) or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16):
        raise ValueError(f"resolvers: {text[:80]!r} is not the address of a DNS server, as 10.0.0.53:53")
    return host, int(port)
