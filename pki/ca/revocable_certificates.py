"""Finds certificates to revoke: in the home's identity directories, exported ones, and in the ledger."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.core import CertificateRejected, Home, PkiError, StoreError
from sluice.pki.authorities import AuthorityStore, TrustStore
from sluice.pki.identities import CHAIN_FILE, IdentityStore, previous_certificates, read_certificates
from sluice.pki.ledger import IssuanceNotes, ledger_path, read_ledger, unexpired_certificates
from sluice.pki.revocation import ExportedCertificates, RevocationTarget, identity_directories
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import ISSUING, AuthorityKind, certified_identity, was_issued_by

_LOG = logging.getLogger(__name__)

Found = tuple[AuthorityKind, RevocationTarget]
"""A certificate and the authority that signed it."""


def in_home(
    home: Home, now: dt.datetime, *, identity: SpiffeId | None = None, serial: int | None = None
) -> Iterator[Found]:
    """What has not expired at ``now`` and is of ``identity``, or has the number ``serial``; each once.

    Raises:
        CertificateRejected: a directory holds what no authority of this home has signed.
        LedgerError: the ledger is damaged.
    """
    seen: set[int] = set()
    for directory in identity_directories(home):
        if identity is None or _identity_in(directory) == identity:
            try:
                found = list(in_directory(home, directory, now, serial=serial))
            except StoreError as error:  # one damaged directory must not prevent the revocation
                _LOG.warning("%s is left out: %s", directory, error)
                continue
            for kind, target in found:
                seen.add(target.serial)
                yield kind, target
    # Elsewhere: exported directories and stores outside the home; other machines, by the ledger.
    for kind, target in chain(
        _outside(home, now, identity=identity, serial=serial),
        unexpired_certificates(home.pki, now, identity=identity, serial=serial),
    ):
        if target.serial not in seen:
            seen.add(target.serial)
            yield kind, target


def _outside(home: Home, now: dt.datetime, *, identity: SpiffeId | None, serial: int | None) -> Iterator[Found]:
    outside = ExportedCertificates(home.pki)
    for each in outside.certificates():
        wanted = identity is None or each.identity == str(identity)
        if wanted and each.not_after > now and serial in {None, int(each.serial, 16)}:
            yield each.authority, each.target()
    for directory in outside.directories():
        if identity is None or _identity_in(directory) == identity:
            # Its earlier certificates too; one of another authority must be revoked there.
            with contextlib.suppress(StoreError, CertificateRejected):
                yield from in_directory(home, directory, now, serial=serial)
    if identity is None:
        return
    for path in outside.stores():
        with contextlib.suppress(StoreError), IdentityStore(path) as store:
            found = store.get(identity)
            if found is not None and found[0].leaf.not_valid_after_utc > now:
                leaf = found[0].leaf
                if serial in {None, leaf.serial_number}:
                    yield _issuer_of(home, leaf, path), RevocationTarget.of(leaf, str(identity))


def in_directory(home: Home, directory: Path, now: dt.datetime, *, serial: int | None = None) -> Iterator[Found]:
    """The certificate in an identity directory, and those that it replaced: their keys may have been stolen.

    Without replaced ones of an authority that is no longer trusted.
    """
    current = read_certificates(directory / CHAIN_FILE)[0]
    for leaf in (current, *previous_certificates(directory)):
        if leaf.not_valid_after_utc > now and serial in {None, leaf.serial_number}:
            kind = _issuer_of(home, leaf, directory) if leaf is current else _trusted_issuer_of(home, leaf)
            if kind is not None:
                yield kind, RevocationTarget.of(leaf, str(certified_identity(leaf)))


def fingerprints(home: Home, directory: Path | None = None) -> Iterator[tuple[int, str]]:
    """Serial number and SHA-256 of every certificate that can be found here, and in ``directory``."""
    for each in {*identity_directories(home), *([] if directory is None else [directory])}:
        with contextlib.suppress(StoreError):
            for certificate in (*read_certificates(each / CHAIN_FILE)[:1], *previous_certificates(each)):
                yield certificate.serial_number, certificate.fingerprint(hashes.SHA256()).hex()
    if ledger_path(home.pki).exists():
        # Recent offline certificates are still notes.
        for record in chain(read_ledger(ledger_path(home.pki)), IssuanceNotes(home.pki).records()):
            if record.serial and record.certificate:
                yield int(record.serial, 16), record.certificate


def _issuer_of(home: Home, leaf: x509.Certificate, directory: Path) -> AuthorityKind:
    if (kind := _trusted_issuer_of(home, leaf)) is not None:
        return kind
    raise CertificateRejected(f"{directory} was not certified by an authority of {home.root}", "revoke it where it was")


def _trusted_issuer_of(home: Home, leaf: x509.Certificate) -> AuthorityKind | None:
    store = AuthorityStore(home.pki)
    trust = TrustStore(home.pki)
    for kind in ISSUING:
        if store.exists(kind) and any(was_issued_by(leaf, anchor) for anchor in trust.anchors(kind)):
            return kind
    return None


def _identity_in(directory: Path) -> SpiffeId | None:
    try:
        return certified_identity(read_certificates(directory / CHAIN_FILE)[0])
    except PkiError:
        return None
