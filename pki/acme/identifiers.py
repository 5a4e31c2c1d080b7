"""Identifiers of orders: DNS names, wildcards among them, and addresses (RFC 8555, RFC 8738)."""

from __future__ import annotations

import ipaddress
from typing import Literal

import msgspec

from sluice.core import CertificateRejected
from sluice.pki.x509 import HostNames, dns_name


class Identifier(msgspec.Struct, frozen=True):
    """A name or address to certify."""

    type: Literal["dns", "ip"]
    value: str

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all names that add one label to a base."""
        return self.type == "dns" and self.value.startswith("*.")

    @property
    def base(self) -> Identifier:
        """The name to validate: of a wildcard, the name without ``*.`` (RFC 8555, 7.1.4)."""
        return Identifier("dns", self.value[2:]) if self.is_wildcard else self

    def __str__(self) -> str:
        return f"{self.type}:{self.value}"


def parse_identifier(kind: str, value: str) -> Identifier:
    """Parse and normalize an identifier; :class:`CertificateRejected` when it is none."""
    if kind == "ip":
        try:
            address = ipaddress.ip_address(value)
        except ValueError as error:
            raise CertificateRejected(f"{value[:80]!r} is not an address") from error
        if str(address) != value or getattr(address, "scope_id", None) is not None:
            raise CertificateRejected(f"{value[:80]!r} is not an address as RFC 5952 writes it")
        return Identifier("ip", value)
    # The rules of the authority itself: labels of letters, digits and '-', and one whole label for a wildcard.
    name = HostNames.checked((value,), ()).dns[0]
    if "." not in name:
        raise CertificateRejected(f"{value[:80]!r} has a single label", "use a full name")
    return Identifier("dns", name)


def host_identifier(host: str) -> Identifier:
    """The identifier of a host in a URL; :class:`CertificateRejected` when it is neither a name nor an address."""
    try:
        return Identifier("ip", str(ipaddress.ip_address(host)))
    except ValueError:
        return Identifier("dns", dns_name(host))
