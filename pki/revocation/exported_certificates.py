"""Certificates that were issued to directories outside the home: ``<pki>/outside.json``.

Identities written with ``--out``, certified by request, or stored in one file (``--store``) are in no directory of the
home. This records them, so that they can be revoked by name, and so that existing directories among them get CRLs. It
holds only public facts.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.core import StoreError, locked, make_private_directory, read_bounded, remove_leftovers, write_secret
from sluice.pki.identities import CA_FILE, CHAIN_FILE
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.x509 import DAMAGED_JSON, AuthorityKind, issuer_id

OUTSIDE_FILE = "outside.json"
MAX_CERTIFICATES = 10_000
"""Most certificates remembered, the latest ones; use a store to certify more at once."""
MAX_STORES = 64
MAX_FILE_BYTES = 16 << 20


class ExportedCertificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One certificate: ``serial`` and ``issuer`` (its key identifier) are hexadecimal; ``directory`` is absolute."""

    identity: str
    serial: str
    sha256: str
    issuer: str
    authority: AuthorityKind
    not_after: dt.datetime
    directory: str

    def target(self) -> RevocationTarget:
        """The target for revoking it."""
        return RevocationTarget(int(self.serial, 16), self.identity, self.not_after, self.issuer, self.sha256)


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    certificates: tuple[ExportedCertificate, ...] = ()
    stores: tuple[str, ...] = ()


class ExportedCertificates:
    """The record below one ``pki`` directory."""

    def __init__(self, pki: Path) -> None:
        self._pki = pki
        self._path = pki / OUTSIDE_FILE

    def remember(
        self, certificate: x509.Certificate, identity: str, kind: AuthorityKind, directory: Path, now: dt.datetime
    ) -> None:
        """Record that ``certificate``, signed by ``kind``, went to ``directory``, unless that is in the home.

        Raises:
            StoreError: it cannot be written.
        """
        place = directory.absolute()
        if place.resolve().is_relative_to((self._pki / "identities").resolve()):
            return
        entry = ExportedCertificate(
            identity=identity,
            serial=f"{certificate.serial_number:x}",
            sha256=certificate.fingerprint(hashes.SHA256()).hex(),
            issuer=issuer_id(certificate),
            authority=kind,
            not_after=certificate.not_valid_after_utc,
            directory=str(place),
        )
        self._change(lambda record: _with_certificate(record, entry, now))

    def remember_store(self, store: Path) -> None:
        """Record that the file ``store`` holds identities."""
        place = str(store.absolute())
        self._change(
            lambda record: msgspec.structs.replace(
                record, stores=tuple(dict.fromkeys((*record.stores, place)))[-MAX_STORES:]
            )
        )

    def certificates(self) -> tuple[ExportedCertificate, ...]:
        """Everything remembered, oldest first; raises :class:`StoreError` when the record is damaged."""
        return self._read().certificates

    def stores(self) -> Iterator[Path]:
        """The recorded stores that still exist."""
        for text in self._read().stores:
            if (path := Path(text)).is_file():
                yield path

    def directories(self) -> list[Path]:
        """The recorded directories that still exist, belong to the owner, and have anchors and a chain; sorted."""
        found = {Path(each.directory) for each in self._read().certificates if each.directory}
        return sorted(path for path in found if _is_ours(path))

    def _change(self, change: Callable[[_Record], _Record]) -> None:
        make_private_directory(self._pki)
        with locked(self._pki):
            remove_leftovers(self._pki, OUTSIDE_FILE)
            before = self._read()
            after = change(before)
            if after != before:
                write_secret(self._path, msgspec.json.format(msgspec.json.encode(after), indent=1) + b"\n")

    def _read(self) -> _Record:
        if not self._path.exists():
            return _Record()
        try:
            return msgspec.json.decode(read_bounded(self._path, MAX_FILE_BYTES), type=_Record)
        except DAMAGED_JSON as error:
            raise StoreError(
                f"{self._path} is damaged: {error}", "restore it from a copy; without it, revoke by serial number"
            ) from error


def _with_certificate(record: _Record, entry: ExportedCertificate, now: dt.datetime) -> _Record:
    """What has expired is forgotten."""
    kept = [
        each
        for each in record.certificates
        if each.not_after > now and (each.serial, each.directory) != (entry.serial, entry.directory)
    ]
    return msgspec.structs.replace(record, certificates=(*kept, entry)[-MAX_CERTIFICATES:])


def _is_ours(directory: Path) -> bool:
    try:
        info = directory.lstat()
    except OSError:
        return False
    whole = (directory / CHAIN_FILE).is_file() and (directory / CA_FILE).is_file()
    return whole and not directory.is_symlink() and info.st_uid == os.geteuid()
