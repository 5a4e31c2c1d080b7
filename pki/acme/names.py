"""Which names may be certified: patterns in the configuration and of accounts. No I/O.

A pattern is a host name, ``*.domain`` for all names below a domain at any depth, or a network. Deny by default.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.core import CertificateRejected, Network
from sluice.pki.acme.identifiers import Identifier
from sluice.pki.x509 import dns_name


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry: exactly one of the three is set."""

    exact: str = ""
    below: str = ""
    network: Network | None = None

    def covers(self, identifier: Identifier) -> bool:
        """Whether the pattern includes everything that ``identifier`` stands for."""
        if identifier.type == "ip":
            if self.network is None:
                return False
            address = ipaddress.ip_address(identifier.value)
            return address.version == self.network.version and address in self.network
        if identifier.is_wildcard:
            base = identifier.base.value
            return bool(self.below) and (base == self.below or base.endswith(f".{self.below}"))
        if self.exact:
            return identifier.value == self.exact
        return bool(self.below) and identifier.value.endswith(f".{self.below}")

    def touches(self, identifier: Identifier) -> bool:
        """Whether the pattern includes anything that ``identifier`` stands for."""
        if not identifier.is_wildcard:
            return self.covers(identifier)
        # A wildcard stands for the names exactly one label below its base.
        return self.covers(identifier) or self.exact.partition(".")[2] == identifier.base.value


def parse_patterns(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Parse patterns; :class:`CertificateRejected` names the invalid one."""
    return tuple(_parse(text) for text in texts)


def _parse(text: str) -> Pattern:
    try:
        return Pattern(network=ipaddress.ip_network(text))
    except ValueError:
        pass
    try:
        if text.startswith("*."):
            return Pattern(below=dns_name(text[2:]))
        return Pattern(exact=dns_name(text))
    except CertificateRejected as error:
        raise CertificateRejected(
            f"{text[:80]!r} is neither a name, nor '*.' and a domain, nor a network",
            'as in ["www.internal.example", "*.apps.internal.example", "10.0.0.0/8"]',
        ) from error


@dataclass(frozen=True, slots=True)
class NamePolicy:
    """The names that the configuration allows, minus its exceptions and the cluster's own names."""

    allowed: tuple[Pattern, ...]
    excepted: tuple[Pattern, ...] = ()

    def refusal(self, identifier: Identifier, account: Sequence[str] | None) -> str:
        """Why ``identifier`` is not certified; empty when it is.

        ``account``: the patterns that limit the account; None: no limit.
        """
        if any(pattern.touches(identifier) for pattern in self.excepted):
            return f"{identifier.value} is excepted from what this server certifies"
        if not any(pattern.covers(identifier) for pattern in self.allowed):
            return f"{identifier.value} is not among the names that this server certifies"
        if account is not None and not any(pattern.covers(identifier) for pattern in parse_patterns(account)):
            return f"{identifier.value} is not among the names of this account"
        return ""
