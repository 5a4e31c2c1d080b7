"""Addresses of listeners as people write them: ``host:port``, ``https://host``, ``tls://host:port``, ``unix:PATH``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from sluice.core import PkiError, host_port

HTTPS_PORT = 443
MAX_ADDRESS_CHARACTERS = 1024
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


class InvalidAddress(PkiError):
    """A text that is no address of a listener."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener is: ``host`` and ``port``, or the ``path`` of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text``; :class:`InvalidAddress` says what is wrong with it."""
        if len(text) > MAX_ADDRESS_CHARACTERS:
            raise InvalidAddress(f"an address of more than {MAX_ADDRESS_CHARACTERS} characters")
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if not path or "\0" in path:
                raise InvalidAddress(f"{text!r} names no socket", "write unix:PATH")
            return cls(path=path)
        if text.startswith(("https://", "tls://")):
            return cls._parse_url(text)
        if (found := _HOST_AND_PORT.fullmatch(text)) is None:
            raise InvalidAddress(
                f"{text!r} is not an address", "write HOST:PORT, [IPv6]:PORT, https://HOST or unix:PATH"
            )
        return cls._checked(found.group(1).strip("[]"), int(found.group(2)), text)

    @classmethod
    def _parse_url(cls, text: str) -> Self:
        try:
            url = urlsplit(text)
            host, port = url.hostname or "", url.port
        except ValueError as error:
            raise InvalidAddress(f"{text!r} is not an address: {error}") from error
        if url.username is not None or url.password is not None:
            raise InvalidAddress("an address has no user and no password", "leave them out: nothing is sent")
        if port is None and url.scheme == "tls":
            raise InvalidAddress(f"{text!r} has no port", "write tls://HOST:PORT")
        return cls._checked(host, HTTPS_PORT if port is None else port, text)

    @classmethod
    def _checked(cls, host: str, port: int, text: str) -> Self:
        if not host or not 0 < port < 65536:
            raise InvalidAddress(f"{text!r} is not an address: it needs a host, and a port from 1 to 65535")
        return cls(host, port)

    @property
    def server_name(self) -> str:
        """The name for server name indication: host names only (RFC 6066, section 3)."""
        try:
            ipaddress.ip_address(self.host.partition("%")[0])
        except ValueError:
            return self.host
        return ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return host_port(self.host, self.port)


def looks_like_address(text: str) -> bool:
    """Whether ``text`` is or may be an address; a file of that name has precedence."""
    return text.startswith(("unix:", "https://", "tls://")) or _HOST_AND_PORT.fullmatch(text) is not None
