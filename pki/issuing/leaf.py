"""Values of one issuance: the request, the issued leaf, and the answer to the requester. No I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
from cryptography import x509

from sluice.core import StoreError
from sluice.pki.authorities import Authority, to_pem
from sluice.pki.config import PkiConfig
from sluice.pki.ledger import IssuanceKind
from sluice.pki.spiffe_id import Role
from sluice.pki.x509 import (
    AuthorityKind,
    Names,
    PrivateKey,
    Profile,
    PublicKey,
    Purpose,
    alternative_names,
    certified_identity,
    check_csr,
    check_edge_key,
    edge_server_profile,
    kept_lifetime,
    purposes_of,
    workload_profile,
)


@dataclass(frozen=True, slots=True)
class LeafRequest:
    """A leaf to issue. Its creator has checked that the requester may have it."""

    names: Names
    profile: Profile
    lifetime: dt.timedelta | None = None
    """None: as long as the profile says."""
    accept: tuple[str, ...] = ()
    """SPIFFE patterns of the peers that a JVM accepts; they are kept with the identity, not in the certificate."""
    key: PublicKey | None = None
    """The key to certify; None: the issuer makes one."""
    kind: IssuanceKind | Literal[""] = ""
    """Why the online authority issues it, for the ledger; empty: a user of this machine issues it with the local
    key."""
    requester: str = ""
    """The requester that the ledger names."""
    token: str = ""
    """The id of the join token that this uses up."""

    def for_csr(self, csr_pem: bytes) -> LeafRequest:
        """This request for the key of a CSR, which must have exactly these names.

        Raises:
            CertificateRejected: it asks for other names, or its authority does not certify such a key.
        """
        key = check_csr(csr_pem, self.names)
        if self.profile.authority is AuthorityKind.EDGE:
            check_edge_key(key)
        return replace(self, key=key)


def renewal_request(
    leaf: x509.Certificate,
    config: PkiConfig,
    *,
    profile: Profile | None = None,
    lifetime: dt.timedelta | None = None,
    authority_ends: Collection[dt.datetime] = (),
) -> LeafRequest:
    """The successor of ``leaf``: the same names, purposes and lifetime.

    Args:
        leaf: what is to be replaced.
        config: the profiles.
        profile: of the successor; by default that of ``leaf``.
        lifetime: of the successor; by default that of ``leaf``.
        authority_ends: see :func:`sluice.pki.x509.profiles.kept_lifetime`.

    Raises:
        PkiError: ``leaf`` is not ours.
    """
    names = names_of(leaf)
    if profile is None:
        public = names.spiffe_id.role is Role.GATEWAY and purposes_of(leaf) == (Purpose.SERVER,)
        profile = (edge_server_profile if public else workload_profile)(names.spiffe_id.role, config)
    if lifetime is None:
        backdate = dt.timedelta(minutes=config.backdate_minutes)
        kept = kept_lifetime(leaf, profile, backdate=backdate, authority_ends=authority_ends)
        lifetime = None if kept == profile.lifetime else kept
    return LeafRequest(names, profile, lifetime)


def names_of(leaf: x509.Certificate) -> Names:
    """The identity and the host names of a leaf; raises :class:`PkiError` when it is not ours."""
    return Names.checked(certified_identity(leaf), *alternative_names(leaf))


@dataclass(frozen=True, slots=True)
class IssuedLeaf:
    """A signed leaf; it may leave once it is recorded."""

    request: LeafRequest
    leaf: x509.Certificate
    authority: Authority
    anchors: tuple[x509.Certificate, ...]
    """The trust anchors of its side, the signing one first."""
    key: PrivateKey | None = field(default=None, repr=False)
    """Its key, when the issuer made it."""

    @property
    def own_key(self) -> PrivateKey:
        """The key made for the leaf.

        Raises:
            StoreError: it was issued for a key that is elsewhere.
        """
        if self.key is None:
            raise StoreError(f"the key of {self.request.names.spiffe_id} is not on this machine")
        return self.key

    @property
    def chain_pem(self) -> bytes:
        """The leaf and the authority's certificate."""
        return to_pem(self.leaf, self.authority.certificate)

    @property
    def ca_pem(self) -> bytes:
        """The trust anchors."""
        return to_pem(*self.anchors)


class SignedChain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a signing request, in memory and on every wire: PEM, all of one side.

    ``chain_pem`` is the leaf and its authority, ``ca_pem`` the trust anchors, ``crl_pem`` their revocation lists (empty
    while none was signed).
    """

    chain_pem: str
    ca_pem: str
    crl_pem: str = ""
