"""Parses external destinations, as rules and jobs write them. No I/O.

A name has only one valid spelling: lower case, letters, digits, ``-`` and ``_``, no trailing dot, IDN in ASCII form,
and a last label that no resolver can read as a number. Other spellings are refused, so that no component interprets
them differently (to some libraries ``0177.0.0.1``, ``0x7f000001``, ``2130706433`` and ``127.1`` are all 127.0.0.1).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from sluice.core import Address, Network, canonical, writes_out

MAX_NAME_CHARACTERS = 253
MAX_PORT = 65535

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


class UnclearDestination(ValueError):
    """The destination is not written in the valid form. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination that a job requests.

    Attributes:
        host: a name in lower case, or an address.
        port: a TCP port.
    """

    host: str | Address
    port: int

    @property
    def name(self) -> str:
        """The host name; empty if the host is an address."""
        return self.host if isinstance(self.host, str) else ""

    def __str__(self) -> str:
        return authority(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Target:
    """What a rule allows: a name, ``*.suffix``, an address or a network, with a range of ports.

    Attributes:
        text: the target as written in the rule.
        name: exact name, or the suffix with a leading dot; empty for a network.
    """

    text: str
    first_port: int
    last_port: int
    name: str = ""
    network: Network | None = None

    @property
    def is_suffix(self) -> bool:
        """Whether the target matches every name below a suffix."""
        return self.name.startswith(".")

    def covers(self, wanted: Destination) -> bool:
        """Whether the target matches ``wanted``, as far as that can be decided before the name is resolved."""
        if not self.first_port <= wanted.port <= self.last_port:
            return False
        if isinstance(wanted.host, str):
            return wanted.host.endswith(self.name) if self.is_suffix else wanted.host == self.name
        return self.network is not None and writes_out(self.network, wanted.host)


def authority(host: str | Address, port: int) -> str:
    """``name:port``, ``1.2.3.4:port`` or ``[::1]:port`` (RFC 3986, 3.2)."""
    return f"[{host}]:{port}" if isinstance(host, ipaddress.IPv6Address) else f"{host}:{port}"


def parse_host(text: str) -> str | Address:
    """Parse a host name or an address (IPv6 without brackets). Raises :class:`UnclearDestination`."""
    if len(text) > MAX_NAME_CHARACTERS or not text.isascii():
        raise UnclearDestination("a name has at most 253 ASCII characters; write an IDN as xn--…")
    if "%" in text:
        raise UnclearDestination("an address with a zone means another host on each machine")
    try:
        return canonical(ipaddress.ip_address(text))
    except ValueError:
        pass
    name = text.lower()
    if not _NAME.fullmatch(name):
        raise UnclearDestination("it is neither an address nor a host name without a trailing dot")
    if _NUMERIC.fullmatch(name.rpartition(".")[2]):
        raise UnclearDestination("a name that ends with a number may be read as an address")
    return name


def parse_authority(text: str) -> Destination:
    """Parse the authority of a CONNECT request. Raises :class:`UnclearDestination`."""
    host, port = _split(text)
    bracketed = host.startswith("[") and host.endswith("]")
    parsed = parse_host(host[1:-1] if bracketed else host)
    if bracketed is not (":" in host):
        raise UnclearDestination("an IPv6 address, and nothing else, is written in brackets")
    if not _PORT.fullmatch(port) or int(port) > MAX_PORT:
        raise UnclearDestination("the port must be 1 to 65535")
    return Destination(parsed, int(port))


def parse_target(text: str) -> Target:
    """Parse one ``to`` entry of a rule. Raises :class:`UnclearDestination`."""
    host, port = _split(text)
    first, last = _ports(port)
    if host.startswith("*."):
        suffix = parse_host(host[2:])
        if not isinstance(suffix, str):
            raise UnclearDestination("'*.' stands before a name, not before an address")
        return Target(text, first, last, name=f".{suffix}")
    if "*" in host:
        raise UnclearDestination("'*' can only stand for what is before a name, as in *.example.com")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed is not (":" in host):
        raise UnclearDestination("an IPv6 address or network, and nothing else, is written in brackets")
    bare = host[1:-1] if bracketed else host
    if "/" in bare:
        return Target(text, first, last, network=parse_network(bare))
    parsed = parse_host(bare)
    if isinstance(parsed, str):
        return Target(text, first, last, name=parsed)
    return Target(text, first, last, network=ipaddress.ip_network(parsed))


def parse_network(text: str) -> Network:
    """Parse a network or a single address. Raises :class:`UnclearDestination`."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise UnclearDestination(f"it is not a network: {error}") from error
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise UnclearDestination("an IPv4-mapped network is written as IPv4")
    return network


def _split(text: str) -> tuple[str, str]:
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise UnclearDestination("it must be host:port")
    return host, port


def _ports(text: str) -> tuple[int, int]:
    if text == "*":
        return 1, MAX_PORT
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (_PORT.fullmatch(first) and _PORT.fullmatch(last)) or not int(first) <= int(last) <= MAX_PORT:
        raise UnclearDestination("the port must be 1 to 65535, a range as in 8000-8010, or *")
    return int(first), int(last)
