"""The online authority without its sockets: authorizes requests and has the engine sign and record them.

Not for several threads at once: its server calls it from one worker thread. Several processes may work for one home:
each request is decided, signed and recorded within one turn at the ledger.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import ipaddress
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

from cryptography import x509
from prometheus_client import Counter

from sluice.core import REGISTRY, CertificateRejected, ChainState, CrlRejected, Disk, rfc3339, utc_now
from sluice.pki.attestation import Attested
from sluice.pki.ca.policy import (
    check_newest,
    grant_attested,
    grant_edge_renewal,
    grant_enrolment,
    grant_job,
    grant_renewal,
    grant_token,
)
from sluice.pki.ca.protocol import TokenKeysAnswer, TrustSide
from sluice.pki.ca.refusals import Refusal, Refusals
from sluice.pki.ca.token_store import TokenStore, UsedToken
from sluice.pki.config import PkiConfig
from sluice.pki.errors import CertificateSuperseded, EnrolmentRefused, IssuanceRefused
from sluice.pki.identities import JoinToken, check_token
from sluice.pki.issuing import HostRequest, IssuedHost, IssuingEngine, LeafRequest, SignedChain
from sluice.pki.jwt import LocalJwtAuthority
from sluice.pki.ledger import DEFAULT_OVERLAP, IssuanceKind, IssuanceNotes, Ledger, LedgerRecord, ledger_path
from sluice.pki.revocation import RevocationList
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509 import (
    DAMAGED,
    AuthorityKind,
    Names,
    Purpose,
    certified_identity,
    fingerprint,
    same_public_key,
    verify_chain,
    workload_profile,
)

_LOG = logging.getLogger(__name__)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
ISSUED = Counter("sluice_ca_issued_total", "Certificates that the online authority has signed.", registry=REGISTRY)
TOKENS = Counter("sluice_ca_tokens_total", "JWT-SVIDs of jobs that the online authority signed.", registry=REGISTRY)
REFUSED = Counter(
    "sluice_ca_superseded_refused_total",
    "Requests refused because a newer certificate of the identity exists: two holders have it.",
    ["kind"],
    registry=REGISTRY,
)


def _in_turn(
    method: Callable[Concatenate[OnlineAuthority, _Given], _Result],
) -> Callable[Concatenate[OnlineAuthority, _Given], _Result]:
    """Run a method of the authority within one turn at the ledger."""

    @functools.wraps(method)
    def taking_turns(self: OnlineAuthority, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        with self.turn():
            return method(self, *args, **kwargs)

    return taking_turns


class OnlineAuthority:
    """The internal authority of one ``pki`` directory, and the edge's if its key is here.

    Opens (and repairs) the ledger.

    Raises:
        StoreError: there is no internal authority, its key is not here, or it is of another trust domain.
        LedgerError: the ledger is damaged, or another process has it.
    """

    def __init__(
        self,
        pki: Path,
        config: PkiConfig,
        *,
        clock: Callable[[], dt.datetime] = utc_now,
        disk: Disk | None = None,
        overlap: dt.timedelta = DEFAULT_OVERLAP,
    ) -> None:
        self._tokens = TokenStore(pki)
        self._config = config
        self._clock = clock
        self._engine = IssuingEngine(pki, config, clock=clock)
        self._engine.authority(AuthorityKind.INTERNAL)  # without it no ledger is begun
        self._ledger = self._engine.ledger = Ledger(ledger_path(pki), clock=clock, disk=disk)
        self._store, self._trust = self._engine.authorities, self._engine.trust
        self._revocations = self._engine.revocations
        self._notes = IssuanceNotes(pki)
        self._refusals = Refusals(pki)
        self._overlap = overlap
        self._jwt = LocalJwtAuthority(
            pki, config.trust_domain, clock, algorithm=config.token_algorithm, issuer=config.token_issuer
        )

    @property
    def state(self) -> ChainState:
        """The state of the ledger."""
        return self._ledger.state

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Keep other authorities of the home from issuing; as :meth:`sluice.pki.ledger.file.Ledger.turn`."""
        return self._ledger.turn()

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def anchors(self) -> bytes:
        """The trusted authorities as PEM, the signing one first: public, verified by a fingerprint."""
        return self._trust.pem(AuthorityKind.INTERNAL)

    def trust(self, kind: AuthorityKind) -> TrustSide:
        """The anchors of a side, the signing one first, and their valid CRLs."""
        ca_pem = self.anchors() if kind is AuthorityKind.INTERNAL else self._trust.pem(kind)
        lists = []
        for anchor in x509.load_pem_x509_certificates(ca_pem):
            try:
                if (current := self._revocations.current(kind, anchor)) is not None:
                    lists.append(current.pem)
            except CrlRejected as error:
                _LOG.error("not distributing the CRL of the %s authority: %s", kind, error)
        return TrustSide(ca_pem=ca_pem.decode(), crl_pem=b"".join(lists).decode())

    def has_edge(self) -> bool:
        """Whether the edge authority's certificate is here (its key may be elsewhere)."""
        return self._store.exists(AuthorityKind.EDGE)

    def refresh_lists(self) -> list[RevocationList]:
        """Sign the CRLs that are due, as far as the keys are here; returns all valid ones."""
        for problem in self._revocations.refresh_all()[1]:
            _LOG.debug("a revocation list stays as it is: %s", problem)
        return self._revocations.lists()

    @_in_turn
    def take_notes(self) -> None:
        """Add to the ledger what was signed on this machine without the online authority."""
        if taken := self._notes.take_in(self._ledger):
            _LOG.info("added %d certificates that were signed by hand to the ledger", taken)

    @_in_turn
    def enrol(self, token: str, csr_pem: bytes) -> SignedChain:
        """Certify the bearer of a join token, which this uses up.

        A retry with the same key, because the answer was lost, gets the same certificate.

        Raises:
            EnrolmentRefused: the token is not good.
            CertificateRejected: the request is not valid; the token stays valid.
            LedgerError: it could not be recorded; nothing was issued, and the token stays valid.
        """
        presented = JoinToken.parse(token)
        used = self._ledger.token_used(presented.id)
        earlier = self._tokens.used(presented) if used else None
        if earlier is not None and (again := self._answered(presented, earlier, csr_pem)) is not None:
            return again
        known = self._tokens.find(presented) if earlier is None else earlier.record
        record = check_token(presented, known, used=used, now=self._clock())
        signed = self._issue(
            grant_enrolment(record, csr_pem, self._config),
            before_record=lambda signed: self._tokens.remember(UsedToken(record=record, chain_pem=signed.chain_pem)),
        )
        self._tokens.remove(record.id)
        return signed

    def _answered(self, presented: JoinToken, earlier: UsedToken, csr_pem: bytes) -> SignedChain | None:
        """The earlier answer to the same request; None: it is a new request, or that answer is no longer valid."""
        # 1. The bearer has the secret, and the token has not expired.
        record = check_token(presented, earlier.record, used=False, now=self._clock())
        # 2. The same request: the same names, for a key that the requester holds (it signed the request).
        try:
            request = grant_enrolment(record, csr_pem, self._config)
        except CertificateRejected:
            return None
        leaf = x509.load_pem_x509_certificates(earlier.chain_pem.encode())[0]
        if request.key is None or not same_public_key(leaf.public_key(), request.key):
            return None
        # 3. According to the ledger, this certificate was issued for the token, and is still the newest of its
        # identity.
        side, identity = request.profile.authority, request.names.spiffe_id
        newest = self._ledger.generations.newest(side, identity)
        if self._ledger.certificate_of(record.id) != fingerprint(leaf) or newest != leaf.serial_number:
            return None
        # 4. Nobody has revoked it.
        self._revocations.check_not_barred(side, identity)
        if self._revocations.is_revoked(side, leaf.serial_number):
            return None
        # 5. Flush its record to disk: its writer may have been killed before that.
        self._ledger.sync()
        trusted = self.trust(side)
        _LOG.info("answered the enrolment of %s again: the same request came before", identity)
        return SignedChain(chain_pem=earlier.chain_pem, ca_pem=trusted.ca_pem, crl_pem=trusted.crl_pem)

    @_in_turn
    def enrol_attested(
        self, attested: Attested, identity: str, csr_pem: bytes, *, edge_server: bool = False
    ) -> SignedChain:
        """Certify a requester that an attestor has verified.

        Raises:
            EnrolmentRefused: it may not have this identity, or a successor has it.
            CertificateRejected: the request is not for the names that it may have, or the identity was revoked.
            LedgerError: it could not be recorded; nothing was issued.
        """
        request = grant_attested(attested, identity, csr_pem, self._config, edge_server=edge_server)
        if self._ledger.successions.succeeded(request.profile.authority, identity, attested.instance):
            raise EnrolmentRefused(
                f"{attested.requester} was succeeded: a newer one has enrolled as {identity} since",
                "only the newest may have an identity",
            )
        return self._issue(request)

    @_in_turn
    def renew(self, current: x509.Certificate, csr_pem: bytes) -> SignedChain:
        """Certify the holder of ``current`` (verified by the handshake) again, for the key of the request.

        Raises:
            CertificateSuperseded: there is a newer certificate of this identity.
            IssuanceRefused: it is not renewed here, or is not valid now.
            CertificateRejected: the request is not for the same names, or the identity was revoked.
        """
        ends = self._ends(AuthorityKind.INTERNAL)
        request = grant_renewal(current, csr_pem, self._config, now=self._clock(), authority_ends=ends)
        self.require_newest(current, "renewal")
        return self._issue(request)

    @_in_turn
    def renew_edge(self, requester: SpiffeId, chain_pem: bytes, csr_pem: bytes, proof: bytes) -> SignedChain:
        """Certify a gateway's public certificate again, for the key of the request.

        ``proof``: see :mod:`sluice.pki.ca.possession`.

        Raises:
            IssuanceRefused: the requester does not hold it, it is not valid, or the edge's key is elsewhere.
            CertificateSuperseded: there is a newer one for this gateway.
            CertificateRejected: the certificate does not verify, or the request is not for the same names.
        """
        self._require_edge_key()
        now = self._clock()
        try:
            leaf, *rest = x509.load_pem_x509_certificates(chain_pem)
        except DAMAGED as error:
            raise CertificateRejected("the public certificate cannot be read") from error
        verify_chain(leaf, rest, self._trust.anchors(AuthorityKind.EDGE), now=now, purpose=Purpose.SERVER)
        if self._revocations.is_revoked(AuthorityKind.EDGE, leaf.serial_number):
            raise IssuanceRefused("the public certificate was revoked", "enrol again with a join token")
        ends = self._ends(AuthorityKind.EDGE)
        request = grant_edge_renewal(requester, leaf, csr_pem, proof, self._config, now=now, authority_ends=ends)
        self.require_newest(leaf, "edge-renewal", AuthorityKind.EDGE)
        return self._issue(request)

    @_in_turn
    def require_newest(
        self,
        shown: x509.Certificate,
        kind: IssuanceKind | Literal[""] = "",
        side: AuthorityKind = AuthorityKind.INTERNAL,
    ) -> None:
        """Refuse a requester whose certificate was superseded: its key may have been stolen.

        The refusal goes into the ledger (once an hour for each certificate), the log, the metrics, and the file for
        doctor and the dashboard.

        Args:
            shown: the requester's certificate; its path and possession were verified.
            kind: the kind of request.
            side: which authority signed it.

        Raises:
            CertificateSuperseded: there is a newer one, for longer than the overlap.
            LedgerError: the refusal could not be recorded.
        """
        self.take_notes()
        now, identity = self._clock(), certified_identity(shown)
        backdate = dt.timedelta(minutes=self._config.backdate_minutes)
        generations = self._ledger.generations
        since = generations.superseded_since(side, identity, shown, backdate)
        lost_at = generations.lost_at(side, identity, shown)
        try:
            check_newest(shown, since, now=now, overlap=self._overlap, lost_at=lost_at)
        except CertificateSuperseded as error:
            REFUSED.labels(kind or "revocation").inc()
            self._remember_refusal(shown, identity, kind, side, now)
            raise error from None

    def _remember_refusal(
        self,
        shown: x509.Certificate,
        identity: SpiffeId,
        kind: IssuanceKind | Literal[""],
        side: AuthorityKind,
        now: dt.datetime,
    ) -> None:
        newest = self._ledger.generations.newest(side, identity)
        refusal = Refusal(
            identity=str(identity),
            authority=side,
            serial=f"{shown.serial_number:x}",
            newest="" if newest is None else f"{newest:x}",
            not_after=shown.not_valid_after_utc,
            first=now,
            last=now,
        )
        if not self._refusals.add(refusal):
            return
        _LOG.error("refused: %s (see docs/howto/stolen-key.md)", refusal.describe())
        self._ledger.append(
            LedgerRecord(
                event="refused",
                kind=kind,
                identity=str(identity),
                serial=refusal.serial,
                certificate=fingerprint(shown),
                not_after=rfc3339(shown.not_valid_after_utc),
                requester=str(identity),
            )
        )

    def _ends(self, kind: AuthorityKind) -> frozenset[dt.datetime]:
        return frozenset(anchor.not_valid_after_utc for anchor in self._trust.anchors(kind))

    def _require_edge_key(self) -> None:
        if not self._store.has_key(AuthorityKind.EDGE):
            raise IssuanceRefused(
                "the edge authority's key is not on the CA's machine",
                "sign a request where it is: `sluice pki issue gateway/NAME --edge-server`",
            )

    @_in_turn
    def issue_job(
        self, requester: SpiffeId, wanted: str, csr_pem: bytes, lifetime: dt.timedelta | None = None
    ) -> SignedChain:
        """Certify a driver or an executor on the request of a JobManager."""
        return self._issue(grant_job(requester, wanted, csr_pem, lifetime, self._config))

    def issue_token(self, requester: SpiffeId, wanted: str, audience: Sequence[str], owner: str) -> str:
        """A JWT-SVID of a driver or an executor on the request of a JobManager.

        Raises:
            IssuanceRefused: the requester is not allowed to, or it is no identity of a job.
            TokenRejected: the audiences are not valid.
            StoreError: the keys are damaged.
        """
        grant = grant_token(requester, wanted, audience, self._config)
        self._jwt.refresh()
        extra = {"sluice": {"job": grant.spiffe_id.job_id, "owner": owner}}
        token = self._jwt.sign(grant.spiffe_id, grant.audience, grant.lifetime, extra)
        TOKENS.inc()
        _LOG.info("signed a token of %s for %s", grant.spiffe_id, ", ".join(grant.audience))
        return token

    def token_keys(self) -> TokenKeysAnswer:
        """The public keys of tokens. Raises :class:`StoreError` when they are damaged."""
        self._jwt.refresh()
        return TokenKeysAnswer(jwks=self._jwt.jwks().decode(), issuer=self._config.token_issuer)

    @_in_turn
    def issue_own(self, directory: Path, name: str, host: str) -> None:
        """Issue this process's own identity, ``spiffe://<td>/ca/<name>``, into ``directory``.

        It includes ``host``, unless that means all addresses of the machine.
        """
        spiffe_id = SpiffeId.process(self._config.trust_domain, Role.CA, name)
        try:
            address = ipaddress.ip_address(host)
            names = Names.checked(spiffe_id, (), () if address.is_unspecified else (str(address),))
        except ValueError:
            names = Names.checked(spiffe_id, (host,), ())
        request = LeafRequest(names, workload_profile(Role.CA, self._config), kind="self", requester=str(spiffe_id))
        self._engine.issue_to(directory, request)
        ISSUED.inc()

    @_in_turn
    def issue_host(self, request: HostRequest) -> IssuedHost:
        """Certify a server outside Sluice, with host names and no identity, after the ACME server has allowed it.

        Raises:
            IssuanceRefused: the edge's key is elsewhere.
            CertificateRejected: a name that the edge authority may not certify.
            LedgerError: it could not be recorded; nothing was issued.
        """
        self._require_edge_key()
        issued = self._engine.issue_host(request)
        ISSUED.inc()
        return issued

    def _issue(
        self, request: LeafRequest, *, before_record: Callable[[SignedChain], None] = lambda _: None
    ) -> SignedChain:
        if request.profile.authority is AuthorityKind.EDGE:
            self._require_edge_key()
        signed = self._engine.issue(request, before_record=before_record)
        ISSUED.inc()
        return signed
