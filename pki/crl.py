"""Certificate revocation lists: signing one, and judging one (RFC 5280, section 5). Decisions only; no I/O.

A list that is damaged, foreign, stale or of a kind not understood is refused as a whole: half a list is worse than
the one before it.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import CRLEntryExtensionOID, ExtensionOID

from pki.authority import Authority, authority_key_identifier
from pki.damaged import DAMAGED
from pki.errors import CrlRejected
from pki.keys import signature_hash

MAX_CRL_BYTES = 4 << 20
"""Largest file of revocation lists that is read, in bytes of PEM: some 58,000 entries, read in about a second."""
MAX_LISTS = 32
"""Most lists in one file."""
CLOCK_SKEW = dt.timedelta(minutes=5)
"""How far a list may be dated in the future."""
EXPIRY_GRACE = dt.timedelta(hours=1)
"""How long after its ``nextUpdate`` a list still counts; from then on its issuer's certificates are refused."""

_PEM_END = b"-----END X509 CRL-----"
_WEAK_HASHES = frozenset({"md5", "sha1"})
_UNDERSTOOD = frozenset({ExtensionOID.AUTHORITY_KEY_IDENTIFIER, ExtensionOID.CRL_NUMBER})
_ENTRY_UNDERSTOOD = frozenset({CRLEntryExtensionOID.CRL_REASON, CRLEntryExtensionOID.INVALIDITY_DATE})


class Reason(enum.StrEnum):
    """Why a certificate is revoked (RFC 5280, 5.3.1).

    Left out on purpose: ``certificateHold`` and ``removeFromCRL``, for nothing is revoked for a while only, and
    ``aACompromise``, for there are no attribute authorities.
    """

    UNSPECIFIED = "unspecified"
    KEY_COMPROMISE = "key-compromise"
    CA_COMPROMISE = "ca-compromise"
    AFFILIATION_CHANGED = "affiliation-changed"
    SUPERSEDED = "superseded"
    CESSATION_OF_OPERATION = "cessation-of-operation"
    PRIVILEGE_WITHDRAWN = "privilege-withdrawn"

    @property
    def flag(self) -> x509.ReasonFlags:
        """As X.509 has it."""
        return x509.ReasonFlags[self.name.lower()]

    @property
    def bars(self) -> bool:
        """Whether the identity gets no new certificate by itself: always, unless it has a better one already."""
        return self is not Reason.SUPERSEDED


class Revocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One revoked certificate, as its issuer remembers it.

    ``serial`` is hexadecimal; ``not_after`` is when the certificate expires, None when unknown; ``barred`` says that
    ``identity`` is not certified again until somebody does so by hand.
    """

    serial: str
    revoked_at: dt.datetime
    reason: Reason
    identity: str = ""
    not_after: dt.datetime | None = None
    barred: bool = False

    @property
    def number(self) -> int:
        """The serial as a number."""
        return int(self.serial, 16)


@dataclass(frozen=True, slots=True)
class Revoked:
    """What a list says about one certificate; ``reason`` in the words of RFC 5280."""

    revoked_at: dt.datetime
    reason: str


@dataclass(frozen=True, slots=True)
class RevocationList:
    """A list that was found good: signed by its issuer, understood, and not expired when it was looked at."""

    issuer: x509.Name
    number: int
    this_update: dt.datetime
    next_update: dt.datetime
    revoked: Mapping[int, Revoked]
    pem: bytes

    @property
    def issuer_key(self) -> bytes:
        """The issuer's name in DER: what certificates refer to it by."""
        return self.issuer.public_bytes()

    @property
    def der(self) -> bytes:
        """The list as it was signed, without its armour."""
        return base64.b64decode(b"".join(self.pem.split(b"\n")[1:-2]), validate=True)

    def expired_at(self, now: dt.datetime) -> bool:
        """Whether it does not count any more, the grace included."""
        return now > self.next_update + EXPIRY_GRACE


def sign_crl(
    authority: Authority,
    revocations: Iterable[Revocation],
    *,
    number: int,
    now: dt.datetime,
    lifetime: dt.timedelta,
) -> bytes:
    """Sign the complete list of ``authority``; returns PEM."""
    # Given all at once: adding entries one by one copies all those before each time.
    builder = x509.CertificateRevocationListBuilder(revoked_certificates=[_to_entry(each) for each in revocations])
    return (
        builder.issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + lifetime)
        .add_extension(authority_key_identifier(authority.certificate), critical=False)
        .add_extension(x509.CRLNumber(number), critical=False)
        .sign(authority.key, signature_hash(authority.key))
        .public_bytes(Encoding.PEM)
    )


def _to_entry(revocation: Revocation) -> x509.RevokedCertificate:
    entry = x509.RevokedCertificateBuilder().serial_number(revocation.number).revocation_date(revocation.revoked_at)
    # "unspecified" is said by leaving the reason out (RFC 5280, 5.3.1).
    if revocation.reason is not Reason.UNSPECIFIED:
        entry = entry.add_extension(x509.CRLReason(revocation.reason.flag), critical=False)
    return entry.build()


def load_crls(pem: bytes) -> list[x509.CertificateRevocationList]:
    """All lists of a PEM file, at least one; :class:`CrlRejected` when anything in it is not a list."""
    if len(pem) > MAX_CRL_BYTES:
        raise CrlRejected(f"the revocation lists are larger than {MAX_CRL_BYTES} bytes")
    *blocks, rest = pem.split(_PEM_END)
    if not blocks or rest.strip():
        raise CrlRejected("this is no PEM file of revocation lists, or it is cut off")
    if len(blocks) > MAX_LISTS:
        raise CrlRejected(f"more than {MAX_LISTS} revocation lists in one file")
    try:
        return [x509.load_pem_x509_crl(block + _PEM_END) for block in blocks]
    except DAMAGED as error:
        raise CrlRejected(f"a revocation list cannot be read: {error}") from error


def check_crl(
    crl: x509.CertificateRevocationList,
    issuers: Sequence[x509.Certificate],
    now: dt.datetime,
    *,
    grace: dt.timedelta = dt.timedelta(0),
) -> RevocationList:
    """Judge a list from outside.

    Args:
        crl: the list.
        issuers: the authorities whose lists are wanted.
        now: with time zone.
        grace: how long after its ``nextUpdate`` it is still taken.

    Raises:
        CrlRejected: the first rule that it breaks.
    """
    try:
        return _check_crl(crl, issuers, now, grace)
    except DAMAGED as error:
        raise CrlRejected(f"a revocation list is damaged: {error}") from error


def _check_crl(
    crl: x509.CertificateRevocationList, issuers: Sequence[x509.Certificate], now: dt.datetime, grace: dt.timedelta
) -> RevocationList:
    what = f"the revocation list of {crl.issuer.rfc4514_string()[:200]!r}"
    # 1. Signed by an authority we know that may sign lists (RFC 5280, 6.3.3 (f) and (g)).
    _check_signature(crl, issuers, what)
    # 2. Complete: neither a delta nor a part, and nothing critical in it that is not understood (RFC 5280, 5.2).
    for extension in crl.extensions:
        if extension.critical and extension.oid not in _UNDERSTOOD:
            raise CrlRejected(f"{what} has the critical extension {extension.oid.dotted_string}")
    try:
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound as error:
        raise CrlRejected(f"{what} has no number, so that older cannot be told from newer") from error
    # 3. Fresh.
    if crl.next_update_utc is None:
        raise CrlRejected(f"{what} does not say until when it counts")
    if crl.last_update_utc > now + CLOCK_SKEW:
        raise CrlRejected(f"{what} is dated {crl.last_update_utc:%Y-%m-%d %H:%M:%S} UTC, which is in the future")
    if now > crl.next_update_utc + grace:
        raise CrlRejected(f"{what} expired at {crl.next_update_utc:%Y-%m-%d %H:%M:%S} UTC", "sluice pki crl refresh")
    # 4. Every entry is about a certificate of this issuer.
    revoked = {entry.serial_number: _entry(entry, what) for entry in crl}
    return RevocationList(
        crl.issuer, number, crl.last_update_utc, crl.next_update_utc, revoked, crl.public_bytes(Encoding.PEM)
    )


def _check_signature(crl: x509.CertificateRevocationList, issuers: Sequence[x509.Certificate], what: str) -> None:
    named = [issuer for issuer in issuers if issuer.subject == crl.issuer]
    if not named:
        raise CrlRejected(f"{what} is of an issuer that is not trusted here")
    if not any(_may_sign_lists(issuer) and crl.is_signature_valid(issuer.public_key()) for issuer in named):  # type: ignore[arg-type]  # any key; a wrong kind is among DAMAGED
        raise CrlRejected(f"{what} is not signed by its issuer")
    digest = None if isinstance(named[0].public_key(), ed25519.Ed25519PublicKey) else crl.signature_hash_algorithm
    if digest is not None and digest.name in _WEAK_HASHES:
        raise CrlRejected(f"{what} is signed with {digest.name}")


def _entry(entry: x509.RevokedCertificate, what: str) -> Revoked:
    reason = x509.ReasonFlags.unspecified
    for part in entry.extensions:
        if part.critical and part.oid not in _ENTRY_UNDERSTOOD:
            raise CrlRejected(f"{what} has an entry with the critical extension {part.oid.dotted_string}")
        if isinstance(part.value, x509.CRLReason):
            reason = part.value.reason
    return Revoked(entry.revocation_date_utc, str(reason.value))


def _may_sign_lists(issuer: x509.Certificate) -> bool:
    try:
        return issuer.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except x509.ExtensionNotFound:
        return False
