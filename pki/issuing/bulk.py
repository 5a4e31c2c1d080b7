"""Bulk issuing: identities that are missing or due for renewal; valid ones are kept."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.core import Home, StoreError
from sluice.pki.identities import IdentityMaterial, IdentityStore, issue_reason, kept_because, read_identity, read_peers
from sluice.pki.issuing.engine import IssuingEngine
from sluice.pki.issuing.leaf import IssuedLeaf, LeafRequest
from sluice.pki.ledger import MAX_RECORDS
from sluice.pki.revocation import Revocation
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import AuthorityKind


class Action(enum.StrEnum):
    """What was done with an identity."""

    ISSUED = "issued"
    RENEWED = "renewed"
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class IssueResult:
    """What was done with one identity, and why."""

    spiffe_id: SpiffeId
    action: Action
    reason: str
    reinstated: bool = False
    """It had been revoked, and is admitted again."""


class Destination(Protocol):
    """Where issued identities are kept."""

    @property
    def atomic(self) -> bool:
        """Whether a run publishes nothing before all of it is committed."""

    def check(self, request: LeafRequest) -> None:
        """Refuse an identity that cannot be stored here, before anything is issued."""

    def read(self, request: LeafRequest) -> tuple[IdentityMaterial, tuple[str, ...]] | None:
        """The stored identity, with its accepted peers; None: there is none. Damage is a :class:`StoreError`."""

    def write(self, issued: IssuedLeaf) -> None:
        """Put a new identity in place of the old."""


class DatabaseDestination:
    """All identities in one file, without CRLs: `unpack` adds the current ones."""

    atomic = True

    def __init__(self, store: IdentityStore) -> None:
        self._store = store
        self._empty = len(store) == 0
        self._authorities: dict[AuthorityKind, bytes] = {}

    def check(self, request: LeafRequest) -> None:
        """Accept every identity."""

    def read(self, request: LeafRequest) -> tuple[IdentityMaterial, tuple[str, ...]] | None:
        """The stored identity, with its accepted peers; None: there is none."""
        return None if self._empty else self._store.get(request.names.spiffe_id)

    def write(self, issued: IssuedLeaf) -> None:
        """Put a new identity in place of the old."""
        authority = issued.authority
        if authority.kind not in self._authorities:
            self._authorities[authority.kind] = authority.certificate.public_bytes(Encoding.DER)
        self._store.put(
            issued.request.names.spiffe_id,
            key=issued.own_key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
            leaf=issued.leaf.public_bytes(Encoding.DER),
            authority=self._authorities[authority.kind],
            accept=issued.request.accept,
        )


class DirectoryDestination:
    """A directory for each identity below the home, or one given directory for a single identity."""

    atomic = False

    def __init__(self, engine: IssuingEngine, home: Home, directory: Path | None = None) -> None:
        self._engine = engine
        self._home = home
        self._directory = directory

    def check(self, request: LeafRequest) -> None:
        """Refuse an identity that has no directory here."""
        self.place(request.names.spiffe_id)

    def place(self, spiffe_id: SpiffeId) -> Path:
        """The directory of ``spiffe_id``; an identity of a job has none below the home."""
        if self._directory is not None:
            return self._directory
        if spiffe_id.job_id:
            raise StoreError(f"{spiffe_id} has no place below the home", "issue it by itself with --out")
        return self._home.identity(spiffe_id.role, spiffe_id.name)

    def read(self, request: LeafRequest) -> tuple[IdentityMaterial, tuple[str, ...]] | None:
        """The stored identity, with its accepted peers; None: there is none."""
        directory = self.place(request.names.spiffe_id)
        if not directory.exists():
            return None
        return read_identity(directory)[0], read_peers(directory)

    def write(self, issued: IssuedLeaf) -> None:
        """Put a new identity in place of the old."""
        self._engine.write(self.place(issued.request.names.spiffe_id), issued)


def check_all(requests: Iterable[LeafRequest], destination: Destination, engine: IssuingEngine) -> None:
    """Refuse impossible requests before anything is issued; one sample of each kind is enough."""
    for request in requests:
        engine.check(request)
        destination.check(request)


def issue_all(
    requests: Iterable[LeafRequest],
    destination: Destination,
    engine: IssuingEngine,
    *,
    force: bool = False,
    reinstate: bool = False,
) -> Iterator[IssueResult]:
    """Issue the identities of ``requests`` into ``destination``, one after the other; yields what was done with each.

    Unless ``force``, it keeps an identity that is complete, has the requested names, was not revoked and has more than
    half of its life left. It refuses a revoked identity and leaves it unchanged; with ``reinstate`` the identity is
    admitted again, with its new certificate only.
    """
    unrecorded: list[IssuedLeaf] = []
    reinstated: list[LeafRequest] = []
    for request in requests:
        barred = engine.revocations.barred(request.profile.authority, request.names.spiffe_id)
        if barred is None:
            action, reason = _judge(request, destination, engine, force=force)
        elif reinstate:
            action, _ = _judge(request, destination, engine, force=True)
            reason = f"{_was_revoked(barred)} and is admitted again"
        else:
            action, reason = Action.REFUSED, _was_revoked(barred)
        if action in {Action.ISSUED, Action.RENEWED}:
            # Not revoked according to the check above, or admitted again.
            issued = engine.sign(request, reinstate=True)
            unrecorded.append(issued)
            if barred is not None:
                reinstated.append(request)
            # An identity that is published at once is reinstated and recorded first, but only after signing has
            # succeeded.
            if not destination.atomic:
                _reinstate(reinstated, engine)
            if not destination.atomic or len(unrecorded) >= MAX_RECORDS:
                _record(unrecorded, engine)
            destination.write(issued)
        yield IssueResult(request.names.spiffe_id, action, reason, barred is not None and reinstate)
    # Identities published together are reinstated together: a run that fails midway reinstates none.
    _reinstate(reinstated, engine)
    _record(unrecorded, engine)


def _reinstate(requests: list[LeafRequest], engine: IssuingEngine) -> None:
    for request in requests:
        engine.revocations.reinstate(request.profile.authority, request.names.spiffe_id)
    requests.clear()


def _record(issued: list[IssuedLeaf], engine: IssuingEngine) -> None:
    engine.record(issued)
    issued.clear()


def _was_revoked(entry: Revocation) -> str:
    return f"it was revoked at {entry.revoked_at:%Y-%m-%d %H:%M:%S} UTC ({entry.reason})"


def _judge(request: LeafRequest, destination: Destination, engine: IssuingEngine, *, force: bool) -> tuple[Action, str]:
    try:
        found = destination.read(request)
    except StoreError as error:
        return Action.RENEWED, error.what
    if found is None:
        return Action.ISSUED, "it was not there"
    material, accept = found
    kind = request.profile.authority
    reason = issue_reason(
        material,
        request.names,
        request.profile,
        engine.authority(kind).certificate,
        engine.now,
        revoked=engine.revocations.is_revoked(kind, material.leaf.serial_number),
    )
    if not reason and accept != request.accept:
        reason = "it accepts other peers"
    if not reason and force:
        reason = "it was asked for"
    return (Action.RENEWED, reason) if reason else (Action.KEPT, kept_because(material))
