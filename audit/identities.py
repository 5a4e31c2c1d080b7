"""Audit identities: issued by the cluster's own authorities, valid or wrong in exactly one way, for minutes.

They exist only in memory. Each is recorded in a log below the home before it is used, with its serial number, case and
expiry, so that entries about it in servers' logs can be explained.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.audit import rogue
from sluice.audit.model import Listener
from sluice.audit.subject import Case, welcome_identity
from sluice.audit.wire import Credential
from sluice.core import SECRET_MODE, Home, make_private_directory
from sluice.pki import MAY_CONNECT, Channel, PkiConfig, Role
from sluice.pki.authorities import AuthorityStore
from sluice.pki.revocation import Reason, RevocationStore, RevocationTarget, push_crls
from sluice.pki.x509 import ISSUING, AuthorityKind

LOG_FILE = "audit-identities.jsonl"
LIFETIME = dt.timedelta(minutes=5)
_SKEW = dt.timedelta(minutes=5)
_FUTURE = dt.timedelta(minutes=10)
_OTHER_JOB = "f" * 32

_AT_THE_EDGE = frozenset({Case.WELCOME, Case.INTERNAL_CERTIFICATE, Case.EXPIRED, Case.NOT_YET_VALID, Case.REVOKED})
"""Cases that apply to the edge."""


class _Entry(msgspec.Struct, frozen=True):
    """One line of the log."""

    issued_at: dt.datetime
    serial: str
    authority: str
    case: str
    identity: str
    listener: str
    not_after: dt.datetime


@dataclass
class HomeIdentities:
    """Identities certified with the authorities' keys in ``home``; implements :class:`sluice.audit.subject.Identities`.

    Raises:
        StoreError: an authority's key is not there.
    """

    home: Home
    config: PkiConfig
    clock: Callable[[], dt.datetime] = field(default=lambda: dt.datetime.now(dt.UTC))

    def __post_init__(self) -> None:
        self._authorities = AuthorityStore(self.home.pki)
        self._signers = {kind: self._signer(kind) for kind in ISSUING}
        self._revocations = RevocationStore(self.home.pki, self.config, clock=self.clock)
        self._lock = threading.Lock()

    def credential(self, case: Case, listener: Listener) -> Credential | None:
        """The credential for ``case``; None when ``case`` does not apply to ``listener``."""
        if listener.channel is None:
            return None
        trust_domain = self.config.trust_domain
        at_the_edge = listener.channel is Channel.EDGE
        if (at_the_edge and case not in _AT_THE_EDGE) or (not at_the_edge and case is Case.INTERNAL_CERTIFICATE):
            return None
        now = self.clock()
        welcome = str(welcome_identity(listener, trust_domain))
        honest = rogue.ForgedLeaf((welcome,), now - _SKEW, now + LIFETIME)
        leaf = _leaf_for(case, honest, listener, trust_domain)
        if leaf is None:
            return None
        from_edge = case is Case.EDGE_CERTIFICATE or (at_the_edge and case is not Case.INTERNAL_CERTIFICATE)
        kind = AuthorityKind.EDGE if from_edge else AuthorityKind.INTERNAL
        if case is Case.SIGNED_BY_LEAF:
            misused = self._sign(case, honest, kind, listener)
            return rogue.forge(leaf, rogue.leaf_as_authority(misused))
        return self._sign(case, leaf, kind, listener)

    def revoke(self, credential: Credential) -> None:
        """Revoke it at its authority, and distribute the CRL to every process of the cluster."""
        with self._lock:
            self._revocations.revoke(
                self._kind_of(credential), [RevocationTarget.of(credential.chain[0])], Reason.SUPERSEDED
            )
            push_crls(self.home, self._revocations.lists(), self.clock())

    def _kind_of(self, credential: Credential) -> AuthorityKind:
        issuer = credential.chain[0].issuer
        return next(kind for kind, signer in self._signers.items() if signer.certificate.subject == issuer)

    def _signer(self, kind: AuthorityKind) -> rogue.Signer:
        authority = self._authorities.load(kind)
        return rogue.Signer(authority.certificate, authority.key, (authority.certificate,))

    def _sign(self, case: Case, forged: rogue.ForgedLeaf, kind: AuthorityKind, listener: Listener) -> Credential:
        credential = rogue.forge(forged, self._signers[kind])
        leaf = credential.chain[0]
        entry = _Entry(
            self.clock(),
            f"{leaf.serial_number:x}",
            kind,
            case,
            " ".join(forged.uris),
            f"{listener.name} {listener.place}",
            leaf.not_valid_after_utc,
        )
        self._record(entry)
        return credential

    def _record(self, entry: _Entry) -> None:
        """Append one line, flushed to disk before the identity is used."""
        path = log_path(self.home)
        make_private_directory(path.parent)
        with self._lock:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, SECRET_MODE)
            try:
                os.write(descriptor, msgspec.json.encode(entry) + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def log_path(home: Home) -> Path:
    """The log of audit identities."""
    return home.pki / LOG_FILE


def _leaf_for(case: Case, honest: rogue.ForgedLeaf, listener: Listener, trust_domain: str) -> rogue.ForgedLeaf | None:
    """The valid leaf ``honest``, made wrong as ``case`` says; None when ``case`` is no error here."""
    now = honest.end - LIFETIME
    wrong_role = _wrong_role(listener)
    other_job = f"spiffe://{trust_domain}/job/{_OTHER_JOB}/executor/0"
    foreign = honest.uris[0].replace(trust_domain, "audit.invalid", 1)
    internal = f"spiffe://{trust_domain}/{Role.TASKMANAGER}/audit"
    changed: dict[Case, rogue.ForgedLeaf | None] = {
        Case.INTERNAL_CERTIFICATE: replace(honest, uris=(internal,)),
        Case.EXPIRED: replace(honest, end=now - dt.timedelta(seconds=2)),
        Case.NOT_YET_VALID: replace(honest, start=now + _FUTURE, end=now + _FUTURE + dt.timedelta(minutes=1)),
        Case.WRONG_USAGE: replace(honest, usages=(ExtendedKeyUsageOID.CODE_SIGNING,)),
        Case.WRONG_ROLE: _with_role(honest, trust_domain, wrong_role),
        Case.OTHER_JOB: replace(honest, uris=(other_job,)) if listener.job_id else None,
        Case.FOREIGN_DOMAIN: replace(honest, uris=(foreign,)),
        Case.TWO_IDENTITIES: replace(honest, uris=(*honest.uris, f"spiffe://{trust_domain}/{Role.AUTH}/audit")),
    }
    return changed.get(case, honest)


def _with_role(honest: rogue.ForgedLeaf, trust_domain: str, role: Role | None) -> rogue.ForgedLeaf | None:
    return None if role is None else replace(honest, uris=(f"spiffe://{trust_domain}/{role}/audit",))


def _wrong_role(listener: Listener) -> Role | None:
    """A role of a process that the channel table does not admit."""
    admitted = MAY_CONNECT[listener.channel] if listener.channel else frozenset(Role)
    return next((role for role in (Role.ZOOKEEPER, Role.TASKMANAGER, Role.CA) if role not in admitted), None)
