"""The revocations of each authority: ``<pki>/revocation/<kind>-<key id>/{revoked.json,crl.pem}``.

``revoked.json`` is written first and holds the revocations; the CRL is signed from it, so that the next refresh repairs
a crash between the two. The key identifier in the name separates a rotated authority's revocations from its
successor's; while both are trusted, both have a CRL (see :mod:`sluice.pki.authorities.rotation_phases`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.core import (
    LOCK_PATIENCE_SECONDS,
    CertificateRejected,
    CrlRejected,
    FileStamp,
    StoreError,
    file_stamp,
    locked,
    make_private_directory,
    read_bounded,
    remove_leftovers,
    write_public,
    write_secret,
)
from sluice.pki.authorities import Authority, AuthorityStore, rotation_directory
from sluice.pki.config import PkiConfig
from sluice.pki.revocation.crl import (
    MAX_CRL_BYTES,
    Reason,
    Revocation,
    RevocationList,
    check_crl,
    load_crls,
    remember_signed,
    sign_crl,
)
from sluice.pki.revocation.delta_crl import drop_parts, read_parts, write_parts
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import ISSUING, AuthorityKind, issuer_id, key_id

_LOG = logging.getLogger(__name__)

RECORD_FILE = "revoked.json"
LIST_FILE = "crl.pem"
MAX_SERIAL_BITS = 160
"""Longest serial number (RFC 5280, 4.1.2.2: 20 octets)."""
MAX_AUTHORITIES_REMEMBERED = 64
MAX_RECORD_BYTES = 64 << 20
"""Largest record that is read, in bytes."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``number`` is that of the last list signed, or about to be signed."""

    number: int = 0
    revoked: tuple[Revocation, ...] = ()


@dataclass(frozen=True, slots=True)
class _Known:
    """A record with indexes for lookups of thousands of identities."""

    stamp: FileStamp | None
    record: _Record
    numbers: frozenset[int]
    barred: dict[str, Revocation]


@dataclass(frozen=True, slots=True)
class RevocationTarget:
    """A certificate to revoke; everything but its serial may be unknown (``issuer`` is a key identifier)."""

    serial: int
    identity: str = ""
    not_after: dt.datetime | None = None
    issuer: str = ""
    sha256: str = ""

    @classmethod
    def of(cls, certificate: x509.Certificate, identity: str = "") -> RevocationTarget:
        """The target for a given certificate."""
        return cls(
            certificate.serial_number,
            identity,
            certificate.not_valid_after_utc,
            issuer_id(certificate),
            certificate.fingerprint(hashes.SHA256()).hex(),
        )


class RevocationStore:
    """Revocations of the authorities below one ``pki`` directory."""

    def __init__(self, pki: Path, config: PkiConfig, *, clock: Callable[[], dt.datetime]) -> None:
        self._authorities = AuthorityStore(pki)
        self._others = AuthorityStore(rotation_directory(pki))
        self._root = pki / "revocation"
        self._lifetime = dt.timedelta(hours=config.crl_hours)
        self._clock = clock
        self._records: dict[Path, _Known] = {}
        self._lists: dict[Path, tuple[FileStamp, RevocationList]] = {}
        self._list_files: dict[x509.Certificate, Path] = {}

    def revoke(
        self,
        kind: AuthorityKind,
        targets: Iterable[RevocationTarget],
        reason: Reason,
        *,
        passphrase: bytes | None = None,
    ) -> tuple[Revocation, ...]:
        """Record that ``kind`` revokes ``targets`` and sign its next CRL; returns those not revoked before.

        While two generations are trusted, the one that signed a certificate revokes it, or both when that is unknown.
        ``passphrase`` opens a root's key that is encrypted.

        Raises:
            CertificateRejected: the reason does not fit the certificate, or a serial is invalid.
            StoreError: the authority's key is not here, or nothing could be written.
        """
        _check_reason(kind, reason)
        wanted = [_checked(each) for each in targets]
        added: dict[int, Revocation] = {}
        sources = self._sources(kind)
        signers = {key_id(certificate) for _, certificate in sources}
        for store, certificate in sources:
            own = key_id(certificate)
            mine = [each for each in wanted if each.issuer == own or each.issuer not in signers]
            if mine or len(sources) == 1:
                for entry in self._revoke(store.load(kind, passphrase), mine, reason):
                    added.setdefault(entry.number, entry)
        return tuple(added.values())

    def _revoke(
        self, authority: Authority, targets: Sequence[RevocationTarget], reason: Reason
    ) -> tuple[Revocation, ...]:
        now = self._clock()
        directory = self._prepare(authority)
        with locked(directory, patience=LOCK_PATIENCE_SECONDS):
            remove_leftovers(directory)
            record = self._read(directory)
            known = {entry.number for entry in record.revoked}
            # A revocation date has whole seconds in a list (RFC 5280, 5.1.2.4).
            added = tuple(
                Revocation(
                    f"{target.serial:x}", now.replace(microsecond=0), reason, target.identity, target.not_after,
                    barred=bool(target.identity) and reason.bars,
                )
                for target in {each.serial: each for each in targets}.values()
                if target.serial not in known
            )  # fmt: skip
            if added:
                self._sign(authority, directory, _Record(record.number, (*record.revoked, *added)), now)
        return added

    def refresh(self, kind: AuthorityKind, *, force: bool = False, passphrase: bytes | None = None) -> bool:
        """Sign a new CRL for ``kind`` when it has none, an unusable one, or one past half of its life.

        During a rotation this applies to both generations. Returns whether one was signed. An expired certificate stays
        on one more CRL and is then dropped. ``passphrase`` opens a root's key that is encrypted.
        """
        due = [
            store
            for store, certificate in self._sources(kind)
            if force or not self._is_good(certificate, kind, self._clock())
        ]
        for store in due:
            self._refresh(store.load(kind, passphrase))
        return bool(due)

    def _refresh_due(self, authority: Authority) -> None:
        if not self._is_good(authority.certificate, authority.kind, self._clock()):
            self._refresh(authority)

    def _refresh(self, authority: Authority) -> None:
        now = self._clock()
        directory = self._prepare(authority)
        with locked(directory, patience=LOCK_PATIENCE_SECONDS):
            remove_leftovers(directory)
            record = self._read(directory)
            last = self._last_update(authority.certificate, authority.kind)
            # What bars an identity stays: only an operator lifts that. Entries of host names bar nobody.
            kept = tuple(entry for entry in record.revoked if _bars(entry) or not _outlived(entry, last, now))
            drop_parts(directory)
            self._sign(authority, directory, _Record(record.number, kept), now)

    def refresh_all(self) -> tuple[list[AuthorityKind], list[str]]:
        """Refresh every authority's CRL; the second part has a line for each authority whose key is elsewhere."""
        signed, problems = [], []
        for kind in AuthorityKind:
            try:
                if self._authorities.exists(kind) and self.refresh(kind):
                    signed.append(kind)
            except StoreError as error:
                problems.append(str(error))
        return signed, problems

    def current(self, kind: AuthorityKind, certificate: x509.Certificate | None = None) -> RevocationList | None:
        """The CRL of ``kind``, None when none was signed yet; :class:`CrlRejected` when it is not valid.

        ``certificate``: which generation's; by default that of the one that signs.
        """
        certificate = certificate or self._authorities.certificate(kind)
        path = self._list_file(certificate, kind)
        if (stamp := file_stamp(path)) is None:
            return None
        cached, now = self._lists.get(path), self._clock()
        # Every issuance needs it: a verified CRL stays valid until it changes or expires.
        if cached is not None and cached[0] == stamp and cached[1].this_update <= now <= cached[1].next_update:
            return cached[1]
        (crl,) = load_crls(read_bounded(path, MAX_CRL_BYTES))
        found = check_crl(crl, (certificate,), now)
        found = replace(found, in_parts=read_parts(path.parent, found.number))
        self._lists[path] = (stamp, found)
        return found

    def pem_for_issuing(self, authority: Authority, anchors: Sequence[x509.Certificate] = ()) -> bytes:
        """The CRLs to deliver with a new certificate, signed again when due; empty when there never was one.

        ``anchors``: the delivered trust anchors; the CRLs are those of ``authority`` and of these.
        """
        others = [each for each in anchors if each != authority.certificate]
        return self._pem_of(authority) + b"".join(each.pem for each in self.of(authority.kind, others))

    def _pem_of(self, authority: Authority) -> bytes:
        path = self._list_file(authority.certificate, authority.kind)
        if (stamp := file_stamp(path)) is None:
            return b""
        cached = self._lists.get(path)
        if cached is None or cached[0] != stamp or _half_life(cached[1]) < self._clock():
            self._refresh_due(authority)
        current = self.current(authority.kind, authority.certificate)
        return b"" if current is None else current.pem

    def of(self, kind: AuthorityKind, anchors: Sequence[x509.Certificate]) -> list[RevocationList]:
        """The existing CRLs of these generations of ``kind``; see :meth:`current`."""
        return [found for each in anchors if (found := self.current(kind, each)) is not None]

    def lists(self) -> list[RevocationList]:
        """All valid CRLs; a bad one is logged and skipped."""
        found = []
        for kind in AuthorityKind:
            for _, certificate in self._sources(kind) if self._authorities.exists(kind) else ():
                try:
                    if (current := self.current(kind, certificate)) is not None:
                        found.append(current)
                except CrlRejected as error:
                    _LOG.error("not distributing the CRL of the %s authority: %s", kind, error)
        return found

    def revocations(self, kind: AuthorityKind) -> tuple[Revocation, ...]:
        """The revocations of ``kind``, oldest first; during a rotation those of the signing generation first."""
        directories = [self._directory(certificate, kind) for _, certificate in self._sources(kind)]
        return tuple(entry for directory in directories for entry in self._read(directory).revoked)

    def is_revoked(self, kind: AuthorityKind, serial: int) -> bool:
        """Whether ``kind`` has revoked this certificate."""
        directories = (self._directory(certificate, kind) for _, certificate in self._sources(kind))
        return any(serial in self._known(directory).numbers for directory in directories)

    def barred(self, kind: AuthorityKind, spiffe_id: SpiffeId) -> Revocation | None:
        """The revocation that bars ``spiffe_id`` from new certificates, if there is one."""
        if not self._root.exists():
            return None
        for directory in self._root.glob(f"{kind}-*"):
            if (entry := self._known(directory).barred.get(str(spiffe_id))) is not None:
                return entry
        return None

    def check_not_barred(self, kind: AuthorityKind, spiffe_id: SpiffeId) -> None:
        """Raise :class:`CertificateRejected` for a revoked identity."""
        if (entry := self.barred(kind, spiffe_id)) is not None:
            raise CertificateRejected(
                f"{spiffe_id} was revoked at {entry.revoked_at:%Y-%m-%d %H:%M:%S} UTC ({entry.reason})",
                "to reinstate it: `sluice pki issue`",
            )

    def reinstate(self, kind: AuthorityKind, spiffe_id: SpiffeId) -> None:
        """Allow new certificates for ``spiffe_id``; revoked certificates stay revoked."""
        if self.barred(kind, spiffe_id) is None:
            return
        for directory in self._root.glob(f"{kind}-*"):
            with locked(directory, patience=LOCK_PATIENCE_SECONDS):
                record = self._read(directory)
                lifted = tuple(
                    msgspec.structs.replace(entry, barred=False) if entry.identity == str(spiffe_id) else entry
                    for entry in record.revoked
                )
                _write(directory, _Record(record.number, lifted))

    def numbers(self, kind: AuthorityKind) -> dict[str, int]:
        """The number of the last CRL of each current generation of ``kind``, by key identifier."""
        directories = {key_id(each): self._directory(each, kind) for _, each in self._sources(kind)}
        return {key: self._read(directory).number for key, directory in directories.items()}

    def continue_from(self, kind: AuthorityKind, known: Mapping[str, Sequence[Revocation]], *, above: int) -> int:
        """Continue after a restored backup: add further revocations, and never reuse a CRL number up to ``above``.

        CRLs are signed again if the key is here and has no passphrase. Returns how many revocations were added.

        Args:
            kind: whose CRLs.
            known: other known revocations, by the key identifier of the revoking generation.
            above: at least the highest number that a lost CRL may have had.
        """
        count = 0
        for store, certificate in self._sources(kind):
            make_private_directory(self._root)
            directory = make_private_directory(self._directory(certificate, kind))
            with locked(directory, patience=LOCK_PATIENCE_SECONDS):
                record = self._read(directory)
                merged = {entry.number: entry for entry in record.revoked}
                for entry in known.get(key_id(certificate), ()):
                    own = merged.setdefault(entry.number, entry)
                    if entry.barred and not own.barred:
                        merged[entry.number] = msgspec.structs.replace(own, identity=entry.identity, barred=True)
                count += len(merged) - len(record.revoked)
                drop_parts(directory)
                continued = _Record(max(record.number, above), tuple(merged.values()))
                _write(directory, continued)
                if store.has_key(kind) and not store.is_encrypted(kind):
                    self._sign(store.load(kind), directory, continued, self._clock())
        return count

    def _sources(self, kind: AuthorityKind) -> list[tuple[AuthorityStore, x509.Certificate]]:
        """The current generations of ``kind``, the signing one first, and where their keys are."""
        sources = [(self._authorities, self._authorities.certificate(kind))]
        if kind in ISSUING and self._others.exists(kind):
            with contextlib.suppress(StoreError):  # a rotation may end at this moment
                other = self._others.certificate(kind)
                # A rotation may swap them at this moment: the next refresh corrects it.
                if other != sources[0][1]:
                    sources.append((self._others, other))
        return sources

    def _sign(self, authority: Authority, directory: Path, record: _Record, now: dt.datetime) -> None:
        # 1. The revocations, and the number of the next CRL. 2. The CRL. After a crash in between, step 2 is repeated
        # with the next number.
        numbered = _Record(record.number + 1, record.revoked)
        _write(directory, numbered)
        pem = sign_crl(authority, numbered.revoked, number=numbered.number, now=now, lifetime=self._lifetime)
        write_public(directory / LIST_FILE, pem)
        remember_signed(pem, authority, numbered.revoked)
        # 3. The parts, when it is large; without them, all readers get the complete CRL.
        write_parts(directory, authority, pem, numbered.revoked, number=numbered.number, now=now)

    def _is_good(self, certificate: x509.Certificate, kind: AuthorityKind, now: dt.datetime) -> bool:
        try:
            current = self.current(kind, certificate)
        except CrlRejected:
            return False
        if current is None or now > _half_life(current):
            return False
        return current.number == self._read(self._directory(certificate, kind)).number

    def _last_update(self, certificate: x509.Certificate, kind: AuthorityKind) -> dt.datetime | None:
        try:
            current = self.current(kind, certificate)
        except CrlRejected:
            return None
        return None if current is None else current.this_update

    def _prepare(self, authority: Authority) -> Path:
        make_private_directory(self._root)
        return make_private_directory(self._directory(authority.certificate, authority.kind))

    def _list_file(self, certificate: x509.Certificate, kind: AuthorityKind) -> Path:
        """The CRL file; cached, because it is needed for thousands of identities of a few authorities."""
        found = self._list_files.get(certificate)
        if found is None:
            if len(self._list_files) >= MAX_AUTHORITIES_REMEMBERED:
                self._list_files.clear()
            found = self._list_files[certificate] = self._directory(certificate, kind) / LIST_FILE
        return found

    def _directory(self, certificate: x509.Certificate, kind: AuthorityKind) -> Path:
        return self._root / f"{kind}-{key_id(certificate)[:16]}"

    def _read(self, directory: Path) -> _Record:
        return self._known(directory).record

    def _known(self, directory: Path) -> _Known:
        path = directory / RECORD_FILE
        if (stamp := file_stamp(path)) is None:
            if (directory / LIST_FILE).exists():
                raise StoreError(f"{path} is missing although a list was signed from it", "restore it from a copy")
            return _Known(None, _Record(), frozenset(), {})
        cached = self._records.get(path)
        if cached is not None and cached.stamp == stamp:
            return cached
        try:
            record = msgspec.json.decode(read_bounded(path, MAX_RECORD_BYTES), type=_Record)
            numbers = frozenset(entry.number for entry in record.revoked)  # each serial must be one
        except ValueError as error:
            raise StoreError(f"{path} is damaged: {error}", "restore it from a copy") from error
        # The first entry wins; the record has the oldest first.
        barred = {entry.identity: entry for entry in reversed(record.revoked) if entry.barred}
        known = self._records[path] = _Known(stamp, record, numbers, barred)
        return known


def _half_life(current: RevocationList) -> dt.datetime:
    return current.this_update + (current.next_update - current.this_update) / 2


def _write(directory: Path, record: _Record) -> None:
    write_secret(directory / RECORD_FILE, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def _checked(target: RevocationTarget) -> RevocationTarget:
    if target.serial <= 0 or target.serial.bit_length() > MAX_SERIAL_BITS:
        raise CertificateRejected(f"{target.serial:x} is not the serial number of a certificate")
    return target


def _check_reason(kind: AuthorityKind, reason: Reason) -> None:
    if reason is Reason.CA_COMPROMISE and kind is not AuthorityKind.ROOT:
        raise CertificateRejected(
            "ca-compromise is a reason to revoke an authority, and this is not one", "for its key use key-compromise"
        )


def _bars(entry: Revocation) -> bool:
    return entry.barred and entry.identity.startswith("spiffe://")


def _outlived(entry: Revocation, last_update: dt.datetime | None, now: dt.datetime) -> bool:
    """Whether it has expired, and is on a CRL that was signed after that (RFC 5280, 3.3)."""
    return entry.not_after is not None and last_update is not None and entry.not_after < min(last_update, now)
