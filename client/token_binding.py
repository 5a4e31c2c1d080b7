"""Records in a file beside an API token which gateway it belongs to, so that it is sent to no other.

``sluice token create --output FILE`` writes ``FILE.gateway``: the gateway's addresses, and the fingerprints of the
authorities that verify it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.client.errors import UsageError
from sluice.core import StoreError, host_port, read_bounded, read_secret, url_host, write_secret
from sluice.gateway import GatewayConfig

MAX_BINDING_BYTES = 64 << 10
HTTPS_PORT = 443
_HOST_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._:")


class TokenBinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gateway that a token belongs to.

    Attributes:
        servers: URLs of one gateway.
        authorities: SHA-256 of the certificates that may verify it, in hexadecimal digits.
    """

    servers: tuple[str, ...]
    authorities: tuple[str, ...]


def gateway_url(text: str) -> str:
    """``text`` as the URL of a gateway: ``https://HOST[:PORT]``, in its shortest form.

    Raises :class:`~sluice.client.errors.UsageError` for anything else; credentials are sent only over TLS.
    """
    remedy = "write https://HOST or https://HOST:PORT"
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise UsageError("that is not the URL of a gateway", remedy) from error
    if text.strip() != text or not text.isprintable():
        raise UsageError("the URL of a gateway has neither surrounding blanks nor invisible characters", remedy)
    shown = text.rpartition("@")[2][:200]
    if parts.scheme.lower() != "https":
        what = "a gateway is reached over https alone" if "://" in text else "that is not a URL"
        raise UsageError(f"{shown!r}: {what}", remedy)
    host = (parts.hostname or "").lower()
    if not host or not set(host) <= _HOST_CHARACTERS or parts.username is not None or parts.password is not None:
        raise UsageError(f"the URL of a gateway has a host and no user: {parts.hostname or ''!r}", remedy)
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise UsageError(f"{shown!r}: the URL of a gateway has no path", remedy)
    return _url(host, HTTPS_PORT if port is None else port)


def binding_file(token_file: Path) -> Path:
    """The file with the gateway that the token in ``token_file`` belongs to."""
    return token_file.with_name(token_file.name + ".gateway")


def write_binding(token_file: Path, binding: TokenBinding) -> None:
    """Write the binding of the token in ``token_file``, readable by its owner alone, atomically."""
    write_secret(binding_file(token_file), msgspec.json.format(msgspec.json.encode(binding)))


def read_binding(token_file: Path) -> TokenBinding | None:
    """The binding of the token in ``token_file``; None: there is none. Raises ``StoreError`` if it is damaged."""
    path = binding_file(token_file)
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_secret(path, MAX_BINDING_BYTES), type=TokenBinding)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path} is damaged", "remove it, and name the token with --token-file") from error


def fingerprints(certificates: Path) -> frozenset[str]:
    """SHA-256 of each certificate in a PEM file; raises :class:`~sluice.core.errors.StoreError`."""
    try:
        found = x509.load_pem_x509_certificates(read_bounded(certificates))
    except ValueError as error:
        raise StoreError(
            f"cannot use {certificates} as the gateway's authority: it holds no certificate",
            "name the edge authority's certificate with --ca",
        ) from error
    return frozenset(each.fingerprint(hashes.SHA256()).hex() for each in found)


def addresses(config: GatewayConfig, announced: str | None) -> tuple[str, ...]:
    """The URLs that clients may use for the gateway: its listening address, its names, and its public URL."""
    found = [announced] if announced else []
    port = urlsplit(announced).port or HTTPS_PORT if announced else config.port
    if port:
        found += [_url(host, port) for host in _hosts(config)]
    if config.public_url:
        found.append(gateway_url(config.public_url))
    return tuple(dict.fromkeys(found))


def _hosts(config: GatewayConfig) -> Iterable[str]:
    yield from config.server_names
    try:
        listens = ipaddress.ip_address(config.host)
    except ValueError:
        yield config.host
        return
    if listens.is_loopback or listens.is_unspecified:
        yield from ("localhost", "127.0.0.1", "::1")
    if not listens.is_unspecified:
        yield str(listens)


def _url(host: str, port: int) -> str:
    return f"https://{url_host(host)}" if port == HTTPS_PORT else f"https://{host_port(host, port)}"
