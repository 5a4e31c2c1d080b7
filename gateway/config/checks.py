"""Checks of values that several tables share. Each raises ``ValueError`` with the name of the key."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
"""A DNS name without wildcard and trailing dot. Clients do not send addresses in SNI (RFC 6066, 3)."""


def host_and_port(key: str, text: str) -> tuple[str, int]:
    """Split ``db.example.com:5432`` or ``[::1]:5432``. Raises ValueError."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.netloc != text or parts.username is not None:
        raise ValueError(f"{key} has {text[:200]!r}, which must be as in db.example.com:5432")
    return host, port


def is_tls_url(url: str) -> bool:
    """Whether ``url`` is ``tls://`` with a host and an optional port, and nothing else."""
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


def check_absolute(config: msgspec.Struct, *keys: str) -> None:
    """Raise ValueError unless each of these paths is absolute or empty."""
    for key in keys:
        if (path := str(getattr(config, key))) and not path.startswith("/"):
            raise ValueError(f"{key} {path[:200]!r} must be an absolute path")


def check_together(config: msgspec.Struct, one: str, other: str) -> None:
    """Raise ValueError unless both values are set, or neither."""
    if bool(getattr(config, one)) != bool(getattr(config, other)):
        raise ValueError(f"{one} and {other} belong together")


def check_asked_names(names: tuple[str, ...]) -> None:
    """Raise ValueError unless ``names`` has at least one entry and all are DNS names that clients can send in SNI."""
    if not names:
        raise ValueError(
            "certificate_file or acme needs server_names: the certificate is shown to clients that ask for one"
        )
    for name in names:
        if not _DNS_NAME.fullmatch(name) or name.rpartition(".")[2].isdigit():
            raise ValueError(
                f"server_names has {name[:253]!r}: with certificate_file or acme they must be plain DNS names"
            )
