"""Issuing identities: what a process asks for when it needs one, and the issuer that holds the keys itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509

from sluice.core.clock import Clock, utc_now
from sluice.core.errors import CertificateRejected
from sluice.core.home import Home
from sluice.pki.authorities.signing import (
    Authority,
    sign_leaf,
    to_pem,
    trust_domain_of,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.authorities.trusted_authorities import TrustStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import write_identity
from sluice.pki.ledger.offline_issuance import Notes, note_of
from sluice.pki.ledger.records import NotedKind
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationStore
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.csr import check_csr, check_edge_key
from sluice.pki.x509.keys import edge_algorithm, generate_key, key_to_pem
from sluice.pki.x509.profiles import (
    AuthorityKind,
    Names,
    Profile,
    edge_server_profile,
    workload_profile,
)


@dataclass(frozen=True, slots=True)
class SignedChain:
    """What comes back for a request: leaf and intermediate, and the anchors of the same side."""

    chain_pem: bytes
    ca_pem: bytes
    crl_pem: bytes = b""
    """The revocation list of the same side; empty when none was signed yet."""


def install_signed(
    directory: Path, key_pem: bytes, signed: SignedChain, *, accept: Sequence[str] = (), now: dt.datetime
) -> None:
    """Write what an issuer answered, with the key it was asked for, into the identity directory ``directory``."""
    write_identity(directory, key_pem=key_pem, chain_pem=signed.chain_pem, ca_pem=signed.ca_pem, accept=accept)
    if signed.crl_pem:
        install_crls(directory, signed.crl_pem, now)


class DirectoryIssuer(Protocol):
    """Whoever can make, or renew, an identity directory."""

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
            dns: host names that listeners of this process are reached by.
            ips: addresses likewise.
            lifetime: default: what the configuration says for the role; never beyond the authority's end.
            accept: SPIFFE patterns of peers, for the JVM.
        """


class Issuer(DirectoryIssuer, Protocol):
    """Whoever can turn any identity into certificates."""

    def sign_csr(
        self,
        csr_pem: bytes,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
    ) -> SignedChain:
        """Certify the key of a request that asks for exactly these names; else :class:`CertificateRejected`."""


class LocalIssuer:
    """Issues with the authorities' keys on this machine."""

    def __init__(self, pki: Home | Path, config: PkiConfig, *, clock: Clock = utc_now) -> None:
        self._store = AuthorityStore(pki.pki if isinstance(pki, Home) else pki)
        self._notes = Notes(pki.pki if isinstance(pki, Home) else pki)
        self._trust = TrustStore(pki.pki if isinstance(pki, Home) else pki)
        self._config = config
        self._clock = clock
        self.revocations = RevocationStore(pki.pki if isinstance(pki, Home) else pki, config, clock=clock)

    def ensure_authorities(self) -> list[str]:
        """Create the authorities that are missing; returns the names of those made now."""
        return [str(kind) for kind in self._store.ensure(self._config, self._clock()).made]

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
        """See :meth:`Issuer.issue_to`."""
        profile = workload_profile(spiffe_id.role, self._config)
        self._issue(directory, Names.checked(spiffe_id, dns, ips), profile, lifetime, accept)

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
        self._issue(directory, Names.checked(spiffe_id, dns, ips), profile, lifetime, ())

    def sign_csr(
        self,
        csr_pem: bytes,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
        reinstate: bool = False,
    ) -> SignedChain:
        """See :meth:`Issuer.sign_csr`.

        ``reinstate`` admits an identity that was revoked again, once its certificate is signed: a request that is
        refused for whatever reason lifts nothing.
        """
        names = Names.checked(spiffe_id, dns, ips)
        profile = workload_profile(spiffe_id.role, self._config)
        key = check_csr(csr_pem, names)
        if profile.authority is AuthorityKind.EDGE:
            check_edge_key(key)
        authority = self._authority(profile, spiffe_id, admit_revoked=reinstate)
        anchors = self._trust.anchors(authority.kind)
        leaf = sign_leaf(authority, key, names, profile, now=self._clock(), backdate=self._backdate, lifetime=lifetime)
        if reinstate:
            self.revocations.reinstate(profile.authority, spiffe_id)
        self._note(leaf, spiffe_id, profile)
        return SignedChain(
            to_pem(leaf, authority.certificate),
            to_pem(*anchors),
            self.revocations.pem_for_issuing(authority, anchors),
        )

    def _issue(
        self, directory: Path, names: Names, profile: Profile, lifetime: dt.timedelta | None, accept: Sequence[str]
    ) -> None:
        authority = self._authority(profile, names.spiffe_id)
        algorithm = self._config.key_algorithm
        at_the_edge = profile.authority is AuthorityKind.EDGE
        key = generate_key(edge_algorithm(algorithm) if at_the_edge else algorithm)
        leaf = sign_leaf(
            authority,
            key.public_key(),
            names,
            profile,
            now=self._clock(),
            backdate=self._backdate,
            lifetime=lifetime,
        )
        self._note(leaf, names.spiffe_id, profile)
        anchors = self._trust.anchors(authority.kind)
        write_identity(
            directory,
            key_pem=key_to_pem(key),
            chain_pem=to_pem(leaf, authority.certificate),
            ca_pem=to_pem(*anchors),
            accept=accept,
        )
        # Read after the directory is in place: whoever revokes meanwhile either finds it, or is found here.
        if crl_pem := self.revocations.pem_for_issuing(authority, anchors):
            install_crls(directory, crl_pem, self._clock())

    def _authority(self, profile: Profile, spiffe_id: SpiffeId, *, admit_revoked: bool = False) -> Authority:
        if spiffe_id.trust_domain != self._config.trust_domain:
            raise CertificateRejected(
                f"{spiffe_id} is not of trust domain {self._config.trust_domain}", "use an identity of this domain"
            )
        if not admit_revoked:
            self.revocations.check_not_barred(profile.authority, spiffe_id)
        authority = self._store.load(profile.authority)
        if (domain := trust_domain_of(authority.certificate)) != self._config.trust_domain:
            raise CertificateRejected(
                f"the {authority.kind} authority is of trust domain {domain}, not {self._config.trust_domain}",
                "set pki.trust_domain back, or use another home",
            )
        return authority

    def _note(self, leaf: x509.Certificate, spiffe_id: SpiffeId, profile: Profile) -> None:
        """For the ledger, where there is one; before the certificate leaves."""
        kind: NotedKind = "edge-local" if profile.authority is AuthorityKind.EDGE else "local"
        self._notes.write([note_of(leaf, str(spiffe_id), kind)])

    @property
    def _backdate(self) -> dt.timedelta:
        return dt.timedelta(minutes=self._config.backdate_minutes)
