"""The only place that signs leaves: for commands, inventories and the online authority.

The caller has decided who may have what. This signs what a :class:`LeafRequest` says, and records it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from cryptography import x509

from sluice.core import CertificateRejected, Clock, StoreError, utc_now
from sluice.pki.authorities import Authority, AuthorityStore, TrustStore, sign_leaf, trust_domain_of
from sluice.pki.config import PkiConfig
from sluice.pki.identities import write_identity
from sluice.pki.issuing.host import HostRequest, IssuedHost
from sluice.pki.issuing.leaf import IssuedLeaf, LeafRequest, SignedChain
from sluice.pki.ledger import IssuanceNotes, Ledger, LedgerRecord, NotedKind, issuance_note
from sluice.pki.revocation import RevocationStore, install_crls
from sluice.pki.x509 import AuthorityKind, edge_algorithm, generate_key, key_to_pem


class IssuingEngine:
    """Signs leaves with the authorities below one ``pki`` directory; not for several threads at once.

    Args:
        pki: where the authorities are.
        config: the trust domain, and how keys and certificates are made.
        clock: the present.
        read_once: read the authorities only for the first leaf, in a run that issues many. Otherwise they are read for
            each leaf, because another one may sign by then.
    """

    def __init__(
        self,
        pki: Path,
        config: PkiConfig,
        *,
        clock: Clock = utc_now,
        read_once: bool = False,
    ) -> None:
        self.authorities = AuthorityStore(pki)
        self.trust = TrustStore(pki)
        self.revocations = RevocationStore(pki, config, clock=clock)
        self._config = config
        self._clock = clock
        self._backdate = dt.timedelta(minutes=config.backdate_minutes)
        self.ledger: Ledger | None = None
        """The ledger for issued leaves; None: write notes beside the ledger of another process, if there is one."""
        self._notes = IssuanceNotes(pki)
        self._read_once = read_once
        self._signing: dict[AuthorityKind, tuple[Authority, tuple[x509.Certificate, ...]]] = {}

    @property
    def now(self) -> dt.datetime:
        """The present."""
        return self._clock()

    def authority(self, kind: AuthorityKind) -> Authority:
        """The authority that signs, with its key.

        Raises:
            StoreError: it or its key is not here, or it is of another trust domain than the configured one.
        """
        return self._signer(kind)[0]

    def check(self, request: LeafRequest) -> None:
        """Refuse an identity of another trust domain, and one whose authority cannot sign here."""
        self._check_trust_domain(request)
        self.authority(request.profile.authority)

    def sign(self, request: LeafRequest, *, reinstate: bool = False) -> IssuedLeaf:
        """Sign in memory; the result must not leave before :meth:`record`.

        Args:
            request: what to sign.
            reinstate: sign for a revoked identity, too; the caller lifts the revocation once this succeeded.

        Raises:
            CertificateRejected: another trust domain, a revoked identity, or a name or lifetime that its authority
                does not certify.
            StoreError: the authority is not here, or its key is not.
        """
        kind = request.profile.authority
        # 1. An identity of this trust domain only.
        self._check_trust_domain(request)
        # 2. A revoked identity gets nothing, whatever the requester proves.
        if not reinstate:
            self.revocations.check_not_barred(kind, request.names.spiffe_id)
        # 3. The authority that signs now, and what is trusted beside it.
        authority, anchors = self._signer(kind)
        # 4. The profile decides about the rest.
        key = None
        if (public := request.key) is None:
            algorithm = self._config.key_algorithm
            key = generate_key(edge_algorithm(algorithm) if kind is AuthorityKind.EDGE else algorithm)
            public = key.public_key()
        leaf = sign_leaf(
            authority,
            public,
            request.names,
            request.profile,
            now=self._clock(),
            backdate=self._backdate,
            lifetime=request.lifetime,
        )
        return IssuedLeaf(request, leaf, authority, anchors, key)

    def record(self, issued: Sequence[IssuedLeaf]) -> None:
        """Record on disk that these were issued, before any of them leaves.

        One record contains both the certificate and the join token that it used up, so that no crash can separate the
        two.

        Raises:
            LedgerError: the ledger could not be written; none of them may leave.
            StoreError: likewise, for a note beside the ledger of another process.
        """
        if self.ledger is not None or self._notes.wanted:
            self._append([_record(each) for each in issued])

    def issue(
        self,
        request: LeafRequest,
        *,
        reinstate: bool = False,
        before_record: Callable[[SignedChain], None] = lambda _: None,
    ) -> SignedChain:
        """Sign for a key that is elsewhere, record it, and return the answer; see :meth:`sign`.

        ``reinstate`` lifts the revocation of the identity once its leaf is signed. ``before_record`` is called with the
        answer before the ledger records it.
        """
        issued = self.sign(request, reinstate=reinstate)
        # Prepare all of the answer before the record, which supersedes the requester's certificate: nothing may fail
        # then.
        signed = SignedChain(
            chain_pem=issued.chain_pem.decode(), ca_pem=issued.ca_pem.decode(), crl_pem=self.lists(issued).decode()
        )
        if reinstate:
            self.revocations.reinstate(request.profile.authority, request.names.spiffe_id)
        before_record(signed)
        self.record([issued])
        # A revocation since the check above may not have found this record yet.
        if not reinstate:
            self.revocations.check_not_barred(request.profile.authority, request.names.spiffe_id)
        return signed

    def issue_host(self, request: HostRequest) -> IssuedHost:
        """Sign for a server outside Sluice, and record it.

        Raises:
            CertificateRejected: a name or lifetime that the edge authority does not certify.
            StoreError: the edge authority is not here, or its key is not.
            LedgerError: it could not be recorded; nothing was issued.
        """
        authority, _ = self._signer(request.profile.authority)
        leaf = sign_leaf(
            authority,
            request.key,
            request.names,
            request.profile,
            now=self._clock(),
            backdate=self._backdate,
        )
        note = issuance_note(leaf, str(request.names), "edge-local")
        self._append([msgspec.structs.replace(note, kind="edge-enrolment", requester=request.requester)])
        return IssuedHost(leaf, authority.certificate)

    def issue_to(self, directory: Path, request: LeafRequest) -> None:
        """Make a key, sign, record, and write the identity directory; see :meth:`sign`."""
        issued = self.sign(request)
        self.record([issued])
        self.write(directory, issued)

    def write(self, directory: Path, issued: IssuedLeaf) -> None:
        """Write the issued leaf and its key into an identity directory."""
        write_identity(
            directory,
            key_pem=key_to_pem(issued.own_key),
            chain_pem=issued.chain_pem,
            ca_pem=issued.ca_pem,
            accept=issued.request.accept,
        )
        # Read after the identity is in place: a concurrent revocation finds the directory, or its CRL is read here.
        if crl_pem := self.lists(issued):
            install_crls(directory, crl_pem, self._clock())

    def _append(self, records: Sequence[LedgerRecord]) -> None:
        if self.ledger is not None:
            self.ledger.append_all(records)
        elif records:
            self._notes.write(records)

    def lists(self, issued: IssuedLeaf) -> bytes:
        """The CRLs to deliver with a leaf, signed again when due; empty when there never was one."""
        return self.revocations.pem_for_issuing(issued.authority, issued.anchors)

    def _check_trust_domain(self, request: LeafRequest) -> None:
        spiffe_id = request.names.spiffe_id
        if spiffe_id.trust_domain != self._config.trust_domain:
            raise CertificateRejected(
                f"{spiffe_id} is not of trust domain {self._config.trust_domain}", "use an identity of this domain"
            )

    def _signer(self, kind: AuthorityKind) -> tuple[Authority, tuple[x509.Certificate, ...]]:
        if (known := self._signing.get(kind)) is not None:
            return known
        authority = self.authorities.load(kind)
        if (domain := trust_domain_of(authority.certificate)) != self._config.trust_domain:
            raise StoreError(
                f"the {kind} authority is of trust domain {domain}, not {self._config.trust_domain}",
                "set pki.trust_domain back, or use another home",
            )
        found = authority, self.trust.anchors(kind)
        if self._read_once:
            self._signing[kind] = found
        return found


def _record(issued: IssuedLeaf) -> LedgerRecord:
    request = issued.request
    local: NotedKind = "edge-local" if issued.authority.kind is AuthorityKind.EDGE else "local"
    record = issuance_note(issued.leaf, str(request.names.spiffe_id), local)
    if not request.kind:
        return record
    return msgspec.structs.replace(record, kind=request.kind, requester=request.requester, token=request.token)
