"""Where the authority connects for a validation: to names that it certifies, at addresses in configured networks.

A client names the host, and the operator of its DNS chooses the address. So each address is checked, and the connection
goes to the checked address (docs/adr/0136-*).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.core import Address, CertificateRejected, Network, canonical, writes_out
from sluice.pki.acme.config import AcmeConfig
from sluice.pki.acme.identifiers import Identifier
from sluice.pki.acme.problems import AcmeProblem, ProblemType

MAX_ADDRESSES = 8
"""Addresses of one name that are tried."""


class Resolver(Protocol):
    """Looks up names in DNS."""

    async def addresses(self, name: str) -> tuple[str, ...]:
        """The addresses of a name; raises :class:`AcmeProblem` (dns) when there are none."""
        ...

    async def texts(self, name: str) -> tuple[bytes, ...]:
        """The TXT records of a name, bounded; raises :class:`AcmeProblem` (dns) when there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """Where connections may go, and on which ports."""

    networks: tuple[Network, ...]
    http_port: int = 80
    tls_port: int = 443

    @classmethod
    def of(cls, config: AcmeConfig) -> Reach:
        """Parse the configuration."""
        networks = tuple(ipaddress.ip_network(each) for each in config.networks)
        return cls(networks, config.http01_port, config.tls_alpn01_port)

    def allows(self, address: Address) -> bool:
        """Whether a network in the configuration has this address, and is within its block."""
        plain = canonical(address)
        return any(writes_out(network, plain) for network in self.networks)

    async def addresses_of(self, host: Identifier, resolver: Resolver) -> tuple[str, ...]:
        """The addresses of ``host`` that this server may connect to.

        Raises:
            AcmeProblem: it has no address, or none within the networks.
        """
        found = (host.value,) if host.type == "ip" else await resolver.addresses(host.value)
        allowed = tuple(dict.fromkeys(str(canonical(each)) for each in _addresses(found) if self.allows(each)))
        if not allowed:
            raise AcmeProblem(
                ProblemType.CONNECTION,
                f"{host.value} has no address in the networks to which this server connects (networks in [ca.acme])",
            )
        return allowed[:MAX_ADDRESSES]


def _addresses(texts: Sequence[str]) -> list[Address]:
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_address(text))
        except ValueError as error:
            raise CertificateRejected(f"{text[:80]!r} is not an address") from error
    return found
