"""Values of issuing for a server outside Sluice: host names, no SPIFFE ID. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509

from sluice.pki.authorities import to_pem
from sluice.pki.x509 import HostNames, Profile, PublicKey


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A certificate to issue. Its creator has checked that the requester may have it."""

    names: HostNames
    profile: Profile
    key: PublicKey
    requester: str
    """The requester that the ledger names."""


@dataclass(frozen=True, slots=True)
class IssuedHost:
    """A signed and recorded certificate, and the certificate of its authority."""

    leaf: x509.Certificate
    authority: x509.Certificate

    @property
    def chain_pem(self) -> bytes:
        """The certificate and its authority's."""
        return to_pem(self.leaf, self.authority)
