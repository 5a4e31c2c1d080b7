"""Certificate revocation lists: signing and verifying them (RFC 5280, section 5). No I/O.

A damaged, foreign, stale or unsupported list is refused as a whole: half a list is worse than the previous one. A delta
changes a complete list, and is valid only together with it (:func:`apply_delta`).
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import CRLEntryExtensionOID, ExtensionOID

from sluice.core import CrlRejected
from sluice.pki.authorities import Authority, authority_key_identifier
from sluice.pki.x509 import DAMAGED, signature_hash

MAX_CRL_BYTES = 4 << 20
"""Largest file of revocation lists that is read, in bytes of PEM: some 58,000 entries, read in about a second."""
MAX_LISTS = 32
"""Most lists in one file."""
CLOCK_SKEW = dt.timedelta(minutes=5)
"""How far a list may be dated in the future."""
EXPIRY_GRACE = dt.timedelta(hours=1)
"""How long a CRL is accepted after its ``nextUpdate``; after that its issuer's certificates are refused."""

MAX_READ_LISTS = 4
"""Most parsed lists that are cached."""

_PEM_END = b"-----END X509 CRL-----"
_WEAK_HASHES = frozenset({"md5", "sha1"})
_UNDERSTOOD = frozenset({ExtensionOID.AUTHORITY_KEY_IDENTIFIER, ExtensionOID.CRL_NUMBER})
_UNDERSTOOD_OF_DELTAS = _UNDERSTOOD | {ExtensionOID.DELTA_CRL_INDICATOR}
_HOLD = str(x509.ReasonFlags.certificate_hold.value)
_REMOVE = str(x509.ReasonFlags.remove_from_crl.value)
_ENTRY_UNDERSTOOD = frozenset({CRLEntryExtensionOID.CRL_REASON, CRLEntryExtensionOID.INVALIDITY_DATE})


class Reason(enum.StrEnum):
    """Why a certificate is revoked (RFC 5280, 5.3.1).

    Omitted: ``certificateHold`` and ``removeFromCRL``, because no revocation is temporary, and ``aACompromise``,
    because there are no attribute authorities.
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
        """The reason as an X.509 flag."""
        return x509.ReasonFlags[self.name.lower()]

    @property
    def bars(self) -> bool:
        """Whether the identity is barred from new certificates: always, unless it has a newer one already."""
        return self is not Reason.SUPERSEDED


class Revocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One revoked certificate, as its issuer remembers it.

    ``serial`` is hexadecimal; ``not_after`` is when the certificate expires, None when unknown; ``barred``:
    ``identity`` is not certified again until an operator reinstates it.
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
    """A list's entry for one certificate; ``reason`` in the words of RFC 5280."""

    revoked_at: dt.datetime
    reason: str


@dataclass(frozen=True, slots=True)
class RevocationList:
    """A verified list: signed by its issuer, understood, and not expired when checked.

    ``pem`` is its source: the list, or with a delta applied, ``complete`` and then the delta. ``in_parts`` has the same
    content as a complete list and a delta, if the signer made them; else empty.
    """

    issuer: x509.Name
    number: int
    this_update: dt.datetime
    next_update: dt.datetime
    revoked: Mapping[int, Revoked] = field(repr=False)
    pem: bytes = field(repr=False)
    base: RevocationList | None = None
    in_parts: bytes = field(default=b"", repr=False)

    @property
    def complete(self) -> RevocationList:
        """The complete list in it: the one that the delta was applied to, or itself."""
        return self.base or self

    @property
    def issuer_key(self) -> bytes:
        """The issuer's name in DER, as certificates refer to it."""
        return self.issuer.public_bytes()

    @property
    def der(self) -> bytes:
        """The signed complete list in DER."""
        return base64.b64decode(b"".join(self.pem.split(b"\n")[1:-2]), validate=True)

    def expired_at(self, now: dt.datetime) -> bool:
        """Whether it has expired, including the grace period."""
        return now > self.next_update + EXPIRY_GRACE


@dataclass(frozen=True, slots=True)
class Delta:
    """A verified delta for the complete lists from number ``base_number`` on (RFC 5280, 5.2.4)."""

    base_number: int
    changes: RevocationList


def sign_crl(
    authority: Authority,
    revocations: Iterable[Revocation],
    *,
    number: int,
    now: dt.datetime,
    lifetime: dt.timedelta,
    base_number: int | None = None,
) -> bytes:
    """Sign a list of ``authority``; returns PEM.

    With ``base_number`` it is a delta: ``revocations`` are those since the complete list of that number.
    """
    # All at once: adding entries one by one copies all earlier ones each time.
    builder = x509.CertificateRevocationListBuilder(revoked_certificates=[_to_entry(each) for each in revocations])
    builder = (
        builder.issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + lifetime)
        .add_extension(authority_key_identifier(authority.certificate), critical=False)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    if base_number is not None:
        builder = builder.add_extension(x509.DeltaCRLIndicator(base_number), critical=True)
    return builder.sign(authority.key, signature_hash(authority.key)).public_bytes(Encoding.PEM)


def remember_signed(pem: bytes, authority: Authority, revocations: Iterable[Revocation]) -> None:
    """Cache the list ``pem``, which this process has just signed from ``revocations``, to avoid parsing it."""
    known = _read(pem.rstrip(b"\n"))
    known.entries = MappingProxyType(
        {each.number: Revoked(each.revoked_at, str(each.reason.flag.value)) for each in revocations}
    )
    known.signers.add(authority.certificate)


def _to_entry(revocation: Revocation) -> x509.RevokedCertificate:
    entry = x509.RevokedCertificateBuilder().serial_number(revocation.number).revocation_date(revocation.revoked_at)
    # "unspecified" is expressed by omitting the reason (RFC 5280, 5.3.1).
    if revocation.reason is not Reason.UNSPECIFIED:
        entry = entry.add_extension(x509.CRLReason(revocation.reason.flag), critical=False)
    return entry.build()


def load_crls(pem: bytes) -> list[x509.CertificateRevocationList]:
    """All lists of a PEM file, at least one; :class:`CrlRejected` when anything in it is not a list."""
    if len(pem) > MAX_CRL_BYTES:
        raise CrlRejected(f"the revocation lists are larger than {MAX_CRL_BYTES} bytes")
    *blocks, rest = pem.split(_PEM_END)
    if not blocks or rest.strip():
        raise CrlRejected("this is not a PEM file of revocation lists, or it is cut off")
    if len(blocks) > MAX_LISTS:
        raise CrlRejected(f"more than {MAX_LISTS} revocation lists in one file")
    try:
        return [_read((block + _PEM_END).lstrip()).crl for block in blocks]
    except DAMAGED as error:
        raise CrlRejected(f"a revocation list cannot be read: {error}") from error


def check_crl(
    crl: x509.CertificateRevocationList,
    issuers: Sequence[x509.Certificate],
    now: dt.datetime,
    *,
    grace: dt.timedelta = dt.timedelta(0),
) -> RevocationList:
    """Verify a complete list from outside.

    Args:
        crl: the list.
        issuers: the authorities whose lists are accepted.
        now: with time zone.
        grace: how long after its ``nextUpdate`` it is still accepted.

    Raises:
        CrlRejected: the first rule that it breaks.
    """
    try:
        return _check_crl(crl, issuers, now, grace, _UNDERSTOOD)
    except DAMAGED as error:
        raise CrlRejected(f"a revocation list is damaged: {error}") from error


def is_delta(crl: x509.CertificateRevocationList) -> bool:
    """Whether this is a delta, by its indicator (RFC 5280, 5.2.4); False for a damaged list."""
    try:
        return any(extension.oid == ExtensionOID.DELTA_CRL_INDICATOR for extension in crl.extensions)
    except DAMAGED:
        return False


def check_delta(
    crl: x509.CertificateRevocationList,
    issuers: Sequence[x509.Certificate],
    now: dt.datetime,
    *,
    grace: dt.timedelta = dt.timedelta(0),
) -> Delta:
    """Verify a delta from outside, as :func:`check_crl` does a complete list; :class:`CrlRejected`."""
    try:
        changes = _check_crl(crl, issuers, now, grace, _UNDERSTOOD_OF_DELTAS)
        indicator = crl.extensions.get_extension_for_class(x509.DeltaCRLIndicator)
    except (x509.ExtensionNotFound, *DAMAGED) as error:
        raise CrlRejected(f"a delta revocation list is damaged: {error}") from error
    if not indicator.critical:
        raise CrlRejected("a delta revocation list does not say critically that it is one")
    return Delta(indicator.value.crl_number, changes)


def apply_delta(complete: RevocationList, delta: Delta) -> RevocationList:
    """``complete`` with the changes of ``delta`` (RFC 5280, 5.2.4).

    No revocation is undone, except of certificates on hold that are released. The result is valid as long as both are.

    Raises:
        CrlRejected: the delta is of another issuer, for a list newer than ``complete``, or older than it.
    """
    changes = delta.changes
    what = f"the delta number {changes.number} of {changes.issuer.rfc4514_string()[:200]!r}"
    if changes.issuer_key != complete.issuer_key:
        raise CrlRejected(f"{what} is of another issuer than the list that it is to change")
    if complete.number < delta.base_number:
        raise CrlRejected(
            f"{what} changes list number {delta.base_number}, and only number {complete.number} is here",
            "bring the complete list along: sluice pki crl refresh",
        )
    if changes.number <= complete.number:
        raise CrlRejected(f"{what} is older than list number {complete.number}, which is in use")
    revoked = dict(complete.revoked)
    for serial, entry in changes.revoked.items():
        if entry.reason != _REMOVE:
            revoked[serial] = entry
        elif serial in revoked and revoked[serial].reason == _HOLD:
            del revoked[serial]
    return RevocationList(
        complete.issuer,
        changes.number,
        changes.this_update,
        min(complete.next_update, changes.next_update),
        revoked,
        complete.pem + changes.pem,
        base=complete,
    )


def _check_crl(
    crl: x509.CertificateRevocationList,
    issuers: Sequence[x509.Certificate],
    now: dt.datetime,
    grace: dt.timedelta,
    understood: frozenset[x509.ObjectIdentifier],
) -> RevocationList:
    what = f"the revocation list of {crl.issuer.rfc4514_string()[:200]!r}"
    # 1. Signed by a known authority that may sign lists (RFC 5280, 6.3.3 (f) and (g)).
    _check_signature(crl, issuers, what)
    # 2. Complete: neither a delta nor a part, and without unknown critical extensions (RFC 5280, 5.2).
    for extension in crl.extensions:
        if extension.critical and extension.oid not in understood:
            raise CrlRejected(f"{what} has the critical extension {extension.oid.dotted_string}")
    try:
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound as error:
        raise CrlRejected(f"{what} has no number, so that older cannot be told from newer") from error
    # 3. Fresh.
    if crl.next_update_utc is None:
        raise CrlRejected(f"{what} has no nextUpdate")
    if crl.last_update_utc > now + CLOCK_SKEW:
        raise CrlRejected(f"{what} is dated {crl.last_update_utc:%Y-%m-%d %H:%M:%S} UTC, which is in the future")
    if now > crl.next_update_utc + grace:
        raise CrlRejected(f"{what} expired at {crl.next_update_utc:%Y-%m-%d %H:%M:%S} UTC", "sluice pki crl refresh")
    # 4. Every entry is about a certificate of this issuer.
    known = _remembered(crl)
    if known.entries is None:
        known.entries = MappingProxyType({entry.serial_number: _entry(entry, what) for entry in crl})
    if not known.pem:
        known.pem = crl.public_bytes(Encoding.PEM)
    return RevocationList(crl.issuer, number, crl.last_update_utc, crl.next_update_utc, known.entries, known.pem)


@dataclass(slots=True)
class _Read:
    """The facts about a list that depend on its bytes alone."""

    crl: x509.CertificateRevocationList
    pem: bytes = b""
    entries: Mapping[int, Revoked] | None = None
    signers: set[x509.Certificate] = field(default_factory=set)


_READ: dict[bytes, _Read] = {}
"""Cache by digest. Large lists are read repeatedly, for each directory and each delta."""
_READING = threading.Lock()


def _read(pem: bytes) -> _Read:
    digest = hashlib.sha256(pem).digest()
    with _READING:
        if (known := _READ.get(digest)) is None:
            known = _Read(x509.load_pem_x509_crl(pem))
            while len(_READ) >= MAX_READ_LISTS:
                del _READ[next(iter(_READ))]
            _READ[digest] = known
        return known


def _remembered(crl: x509.CertificateRevocationList) -> _Read:
    with _READING:
        return next((known for known in _READ.values() if known.crl is crl), None) or _Read(crl)


def _check_signature(crl: x509.CertificateRevocationList, issuers: Sequence[x509.Certificate], what: str) -> None:
    named = [issuer for issuer in issuers if issuer.subject == crl.issuer]
    if not named:
        raise CrlRejected(f"{what} is of an issuer that is not trusted here")
    known = _remembered(crl).signers
    if known.isdisjoint(named):
        signer = next((one for one in named if _may_sign_lists(one) and crl.is_signature_valid(one.public_key())), None)  # type: ignore[arg-type]  # any key; a wrong kind is among DAMAGED
        if signer is None or not _has_whole_octets(crl):
            raise CrlRejected(f"{what} is not signed by its issuer")
        known.add(signer)
    digest = None if isinstance(named[0].public_key(), ed25519.Ed25519PublicKey) else crl.signature_hash_algorithm
    if digest is not None and digest.name in _WEAK_HASHES:
        raise CrlRejected(f"{what} is signed with {digest.name}")


def _has_whole_octets(crl: x509.CertificateRevocationList) -> bool:
    """Whether the signature is a BIT STRING without unused bits (DER: ITU-T X.690, 8.6.2), as every algorithm makes it.

    The library ignores that count when the bits are zero, so a CRL that was changed there would still pass.
    """
    signature = crl.signature
    return crl.public_bytes(Encoding.DER)[-len(signature) - 1] == 0


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
