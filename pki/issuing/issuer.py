"""The interfaces of issuers, and the issuer with the authorities' keys on this machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sluice.core import CertificateRejected, Clock, Home, utc_now
from sluice.pki.config import PkiConfig
from sluice.pki.identities import write_identity
from sluice.pki.issuing.engine import IssuingEngine
from sluice.pki.issuing.leaf import LeafRequest, SignedChain
from sluice.pki.revocation import install_crls
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import Names, edge_server_profile, workload_profile


def install_chain(
    directory: Path, key_pem: bytes, signed: SignedChain, *, accept: Sequence[str] = (), now: dt.datetime
) -> None:
    """Write an issuer's answer, with its key, into the identity directory ``directory``."""
    chain_pem, ca_pem = signed.chain_pem.encode(), signed.ca_pem.encode()
    write_identity(directory, key_pem=key_pem, chain_pem=chain_pem, ca_pem=ca_pem, accept=accept)
    if signed.crl_pem:
        install_crls(directory, signed.crl_pem.encode(), now)


class DirectoryIssuer(Protocol):
    """Issues and renews identity directories."""

    def issue_to(
        self,
        directory: Path,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
        accept: Sequence[str] = (),
    ) -> None:
        """Make a key, certify it, and write an identity directory (see :mod:`sluice.pki.identities.directory`).

        Args:
            directory: created, or renewed in place.
            spiffe_id: the identity; users are certified by the edge authority, all others by the internal one.
            dns: host names of this process's listeners.
            ips: addresses likewise.
            lifetime: default: what the configuration says for the role; never beyond the authority's end.
            accept: SPIFFE patterns of peers, for the JVM.
        """


class Issuer(Protocol):
    """Issues certificates for keys that are elsewhere."""

    def sign_csr(self, csr_pem: bytes, spiffe_id: SpiffeId, *, lifetime: dt.timedelta | None = None) -> SignedChain:
        """Certify the key of a request that asks for exactly this identity; else :class:`CertificateRejected`."""


class LocalIssuer:
    """Issues with the authorities' keys on this machine."""

    def __init__(self, pki: Home | Path, config: PkiConfig, *, clock: Clock = utc_now) -> None:
        self._engine = IssuingEngine(pki.pki if isinstance(pki, Home) else pki, config, clock=clock)
        self._config = config
        self.revocations = self._engine.revocations

    def ensure_authorities(self) -> list[str]:
        """Create the authorities that are missing; returns the names of those made now."""
        return [str(kind) for kind in self._engine.authorities.ensure(self._config, self._engine.now).made]

    def issue_to(
        self,
        directory: Path,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
        accept: Sequence[str] = (),
    ) -> None:
        """Make a key, certify it, and write an identity directory, for any identity of the trust domain."""
        profile = workload_profile(spiffe_id.role, self._config)
        request = LeafRequest(Names.checked(spiffe_id, dns, ips), profile, lifetime, tuple(accept))
        self._engine.issue_to(directory, request)

    def issue_edge_server(
        self,
        directory: Path,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
    ) -> None:
        """The gateway's public certificate: signed by the edge authority, for servers only.

        ``ca.pem`` beside it holds the edge authorities: what user certificates are verified with.
        """
        if not dns and not ips:
            raise CertificateRejected(
                "a public certificate without a host name", "give the names and addresses that clients use"
            )
        profile = edge_server_profile(spiffe_id.role, self._config)
        self._engine.issue_to(directory, LeafRequest(Names.checked(spiffe_id, dns, ips), profile, lifetime))

    def sign_csr(self, csr_pem: bytes, spiffe_id: SpiffeId, *, lifetime: dt.timedelta | None = None) -> SignedChain:
        """Certify the key of a request that asks for exactly this identity; else :class:`CertificateRejected`."""
        profile = workload_profile(spiffe_id.role, self._config)
        return self._engine.issue(LeafRequest(Names.checked(spiffe_id, (), ()), profile, lifetime).for_csr(csr_pem))
