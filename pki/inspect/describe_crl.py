"""Describes a certificate revocation list as plain data, valid or not (RFC 5280, section 5). No I/O.

``check_crl`` decides whether a list is accepted; this describes lists that may not be.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from sluice.core import CertificateRejected
from sluice.pki.identities import Known
from sluice.pki.x509 import DAMAGED

MAX_ENTRIES = 100_000
"""Most entries of one list that are read."""

CrlState = Literal["current", "expired", "not yet valid"]
Signature = Literal["good", "bad", "unknown issuer"]
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


class RevokedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One revoked certificate; ``serial`` is hexadecimal, ``reason`` in the words of RFC 5280."""

    serial: str
    revoked_at: dt.datetime
    reason: str


class CrlSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="revocation list"):
    """One list. ``delta_base`` is the number that a delta builds on; ``signed_by`` names the signing authority."""

    issuer: str
    number: int | None
    delta_base: int | None
    this_update: dt.datetime
    next_update: dt.datetime | None
    state: CrlState
    hash: str
    authority_key_id: str
    signature: Signature
    signed_by: str
    entries: tuple[RevokedEntry, ...]


def summarize_crl(
    crl: x509.CertificateRevocationList, now: dt.datetime, authorities: Sequence[Known] = ()
) -> CrlSummary:
    """Summarize ``crl``; damaged parts are a :class:`CertificateRejected`."""
    try:
        return _summarize(crl, now, authorities)
    except DAMAGED as error:
        raise CertificateRejected(f"the revocation list is damaged: {error}") from error


def _summarize(crl: x509.CertificateRevocationList, now: dt.datetime, authorities: Sequence[Known]) -> CrlSummary:
    if len(crl) > MAX_ENTRIES:
        raise CertificateRejected(f"the revocation list has more than {MAX_ENTRIES} entries")
    number = extension_value(crl.extensions, x509.CRLNumber)
    delta = extension_value(crl.extensions, x509.DeltaCRLIndicator)
    issuer_key = extension_value(crl.extensions, x509.AuthorityKeyIdentifier)
    signature, signed_by = _signer(crl, authorities)
    return CrlSummary(
        issuer=crl.issuer.rfc4514_string(),
        number=None if number is None else number.crl_number,
        delta_base=None if delta is None else delta.crl_number,
        this_update=crl.last_update_utc,
        next_update=crl.next_update_utc,
        state=_state(crl, now),
        hash=signature_hash(crl),
        authority_key_id=(issuer_key.key_identifier or b"").hex() if issuer_key else "",
        signature=signature,
        signed_by=signed_by,
        entries=tuple(_entry(each) for each in crl),
    )


def _signer(crl: x509.CertificateRevocationList, authorities: Sequence[Known]) -> tuple[Signature, str]:
    """The signing authority, by name, and then by signature if two have one name (a rotation)."""
    named = [each for each in authorities if each.certificate.subject == crl.issuer]
    for each in named:
        if _is_signed_with(crl, each.certificate):
            return "good", each.name
    return ("bad", ", ".join(each.name for each in named)) if named else ("unknown issuer", "")


def _is_signed_with(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # a wrong kind is a TypeError
    except DAMAGED:
        return False


def _entry(entry: x509.RevokedCertificate) -> RevokedEntry:
    reason = extension_value(entry.extensions, x509.CRLReason)
    return RevokedEntry(
        serial=f"{entry.serial_number:x}",
        revoked_at=entry.revocation_date_utc,
        reason=str((reason.reason if reason else x509.ReasonFlags.unspecified).value),
    )


def _state(crl: x509.CertificateRevocationList, now: dt.datetime) -> CrlState:
    if crl.next_update_utc is not None and now > crl.next_update_utc:
        return "expired"
    return "not yet valid" if now < crl.last_update_utc else "current"


def signature_hash(signed: x509.Certificate | x509.CertificateRevocationList) -> str:
    """The name of the hash that was signed; the number of the algorithm when that is unknown."""
    try:
        digest = signed.signature_hash_algorithm
    except UnsupportedAlgorithm:
        return signed.signature_algorithm_oid.dotted_string
    return digest.name if digest else "ed25519"


def extension_value(extensions: x509.Extensions, kind: type[_Extension]) -> _Extension | None:
    """The extension of this kind; None when there is none."""
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
