"""Identity directories: the files with a process's certificate, key and trust anchors.

A directory (mode 0700) holds ``key.pem`` (PKCS#8), ``chain.pem`` (leaf, then its intermediate), ``ca.pem``
(trust anchors), ``identity.p12`` with its password in ``identity.p12.pass``, and for the JVM optionally
``peers`` (one SPIFFE pattern a line). ``previous.pem`` has the certificates that were replaced, so that they can be
revoked; ``pki.revocation.crl_files`` handles ``crl.pem``. Readers check that key and leaf belong together, so they
never use a half-replaced set.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core import (
    LOCK_PATIENCE_SECONDS,
    PUBLIC_MODE,
    SECRET_MODE,
    FileStamp,
    PkiError,
    StoreError,
    file_stamp,
    locked,
    make_private_directory,
    read_bounded,
    read_secret,
    remove_leftovers,
    remove_untrusted,
    replace_set,
    staged_name,
    sync_directory,
)
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import DAMAGED, PrivateKey, certified_identity, key_from_pem, pkcs12 as keystore, same_public_key

KEY_FILE = "key.pem"
CHAIN_FILE = "chain.pem"
CA_FILE = "ca.pem"
KEYSTORE_FILE = "identity.p12"
PASSWORD_FILE = "identity.p12.pass"  # noqa: S105  the name of a file, not a password
PEERS_FILE = "peers"
PREVIOUS_FILE = "previous.pem"

MAX_CHAIN_CERTIFICATES = 8
MAX_ANCHORS = 32
MAX_PREVIOUS_CERTIFICATES = 64
"""Most earlier certificates of an identity that are remembered."""
MAX_PEER_PATTERNS = 256
MAX_PASSWORD_BYTES = 1024
READ_ATTEMPTS = 3
"""How often to read a set again when its files change during reading."""

_CERTIFICATE_BEGINS = b"-----BEGIN CERTIFICATE-----"
_PEER_PATTERN = re.compile(r"spiffe://[a-z0-9._-]{1,255}/[A-Za-z0-9._/*-]{1,1024}")

Stamp = tuple[FileStamp | None, ...]
"""The stamps of several files."""


@dataclass(frozen=True, slots=True)
class IdentityMaterial:
    """One consistent generation of an identity."""

    spiffe_id: SpiffeId
    leaf: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    anchors: tuple[x509.Certificate, ...]
    key: PrivateKey = field(repr=False)
    key_pem: bytes = field(repr=False)
    chain_pem: bytes = field(repr=False)
    ca_pem: bytes = field(repr=False)

    def check_valid_at(self, now: dt.datetime) -> None:
        """Refuse a leaf that is not valid at ``now``."""
        if now > self.leaf.not_valid_after_utc:
            raise StoreError(
                f"the certificate of {self.spiffe_id} expired at {self.leaf.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC",
                "issue it again: sluice pki issue",
            )
        if now < self.leaf.not_valid_before_utc:
            raise StoreError(
                f"the certificate of {self.spiffe_id} is not valid before "
                f"{self.leaf.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC",
                "check this machine's clock",
            )


def parse_identity(key_pem: bytes, chain_pem: bytes, ca_pem: bytes, where: str) -> IdentityMaterial:
    """Check that the three parts are whole and belong together; errors name the directory ``where``."""
    key = key_from_pem(key_pem, f"{where}/{KEY_FILE}")
    leaf, *chain = _certificates(chain_pem, f"{where}/{CHAIN_FILE}", MAX_CHAIN_CERTIFICATES)
    anchors = _certificates(ca_pem, f"{where}/{CA_FILE}", MAX_ANCHORS)
    if not same_public_key(key.public_key(), leaf.public_key()):
        raise StoreError(f"{where}/{KEY_FILE} is not the key of {where}/{CHAIN_FILE}", "issue the identity again")
    for anchor in anchors:
        if not is_authority(anchor):
            raise StoreError(
                f"{where}/{CA_FILE} holds {anchor.subject.rfc4514_string()!r}, which is not an authority's certificate",
                "put trust anchors only into it",
            )
    try:
        spiffe_id = certified_identity(leaf)
    except PkiError as error:
        raise StoreError(f"{where}/{CHAIN_FILE}: {error}", "issue the identity again") from error
    return IdentityMaterial(spiffe_id, leaf, tuple(chain), tuple(anchors), key, key_pem, chain_pem, ca_pem)


def stamp_of(directory: Path) -> Stamp:
    """The stamp of the files that make up the identity; a missing file is a :class:`StoreError`."""
    stamps = []
    for name in (KEY_FILE, CHAIN_FILE, CA_FILE):
        if (stamp := file_stamp(directory / name)) is None:
            raise StoreError(f"cannot read {directory / name}: no such file", "issue the identity: sluice pki issue")
        stamps.append(stamp)
    return tuple(stamps)


def read_identity(directory: Path) -> tuple[IdentityMaterial, Stamp]:
    """Read one consistent generation and its stamp; :class:`StoreError` when there is none."""
    for attempt in range(READ_ATTEMPTS):
        before = stamp_of(directory)
        try:
            material = parse_identity(
                read_secret(directory / KEY_FILE),
                read_bounded(directory / CHAIN_FILE),
                read_bounded(directory / CA_FILE),
                str(directory),
            )
        except StoreError:
            if attempt + 1 < READ_ATTEMPTS and stamp_of(directory) != before:
                continue
            raise
        if stamp_of(directory) == before:
            return material, before
    raise StoreError(f"{directory} keeps changing while it is read", "is more than one process renewing it?")


def write_identity(
    directory: Path, *, key_pem: bytes, chain_pem: bytes, ca_pem: bytes, accept: Sequence[str] = ()
) -> None:
    """Write or replace an identity directory.

    A new directory appears in one rename. An existing one is replaced file by file, all staged before the first
    changes, trust anchors first; the keystore keeps its password, so that no reader meets the wrong one.

    Raises:
        StoreError: the parts do not belong together, or cannot be written; what was there before stays.
    """
    material = parse_identity(key_pem, chain_pem, ca_pem, str(directory))
    peers = _peers(accept)
    if not directory.parent.exists():
        make_private_directory(directory.parent)
    # One writer at a time: two at once could leave the key of one with the certificate of the other.
    with locked(directory.parent, patience=LOCK_PATIENCE_SECONDS):
        remove_leftovers(directory.parent, directory.name)
        files = _files(material, _existing_password(directory) or keystore.random_password())
        if peers:
            files = {PEERS_FILE: (peers, PUBLIC_MODE), **files}
        if directory.exists():
            if previous := _previous(directory, material.leaf):
                files = {PREVIOUS_FILE: (previous, PUBLIC_MODE), **files}
            _replace(directory, files)
        else:
            _create(directory, files)


def _files(material: IdentityMaterial, password: bytes) -> dict[str, tuple[bytes, int]]:
    store = keystore.key_store(material.key, material.leaf, material.chain, password)
    return {
        CA_FILE: (material.ca_pem, PUBLIC_MODE),
        PASSWORD_FILE: (password, SECRET_MODE),
        KEYSTORE_FILE: (store, SECRET_MODE),
        KEY_FILE: (material.key_pem, SECRET_MODE),
        CHAIN_FILE: (material.chain_pem, PUBLIC_MODE),
    }


def _replace(directory: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    if directory.is_symlink():
        raise StoreError(f"{directory} is a symbolic link", "name the directory itself")
    make_private_directory(directory)
    remove_leftovers(directory)
    replace_set(directory, files, follow=False)  # a job may have put a link there meanwhile
    for name in {PEERS_FILE, PREVIOUS_FILE} - files.keys():
        remove_untrusted(directory.parent, directory.name, name)


def _create(directory: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    staging = directory.with_name(staged_name(directory.name))
    try:
        make_private_directory(staging)
        replace_set(staging, files, follow=False)
        staging.rename(directory)
    except OSError as error:
        raise StoreError(f"cannot write {directory}: {error.strerror or error}", "nothing was changed") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_directory(directory.parent)


def read_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, in order, at least one; :class:`StoreError` otherwise."""
    return _certificates(read_bounded(path), str(path), MAX_ANCHORS)


def leaf_in(directory: Path) -> x509.Certificate | None:
    """The certificate of the identity in ``directory``; None when there is none that can be read."""
    try:
        return read_certificates(directory / CHAIN_FILE)[0]
    except StoreError:
        return None


def read_peers(directory: Path) -> tuple[str, ...]:
    """The SPIFFE patterns of accepted peers; empty when there is no such file."""
    path = directory / PEERS_FILE
    return tuple(read_bounded(path).decode("utf-8", "replace").split()) if path.exists() else ()


def previous_certificates(directory: Path) -> list[x509.Certificate]:
    """The certificates that this identity had before, latest first; empty when none are known."""
    path = directory / PREVIOUS_FILE
    return _certificates(read_bounded(path), str(path), MAX_PREVIOUS_CERTIFICATES) if path.exists() else []


def _previous(directory: Path, leaf: x509.Certificate) -> bytes:
    """The new content of ``previous.pem``, without what has expired when ``leaf`` begins."""
    replaced: list[x509.Certificate] = []
    with contextlib.suppress(StoreError):  # the damaged file is about to be replaced
        replaced += read_certificates(directory / CHAIN_FILE)[:1]
    with contextlib.suppress(StoreError):
        replaced += previous_certificates(directory)
    alive = [
        each
        for each in dict.fromkeys(replaced)
        if each != leaf and each.not_valid_after_utc > leaf.not_valid_before_utc
    ]
    return b"".join(each.public_bytes(Encoding.PEM) for each in alive[:MAX_PREVIOUS_CERTIFICATES])


def check_peers(accept: Sequence[str]) -> None:
    """Raise :class:`StoreError` unless these are SPIFFE patterns."""
    if len(accept) > MAX_PEER_PATTERNS:
        raise StoreError(f"more than {MAX_PEER_PATTERNS} patterns of accepted peers")
    for pattern in accept:
        if not _PEER_PATTERN.fullmatch(pattern):
            raise StoreError(f"{pattern[:200]!r} is not a pattern of SPIFFE IDs", "as in spiffe://domain/job/<id>/*")


def _peers(accept: Sequence[str]) -> bytes:
    check_peers(accept)
    return "".join(f"{pattern}\n" for pattern in accept).encode()


def _existing_password(directory: Path) -> bytes:
    try:
        return read_secret(directory / PASSWORD_FILE, MAX_PASSWORD_BYTES).strip()
    except StoreError:
        return b""


def _certificates(pem: bytes, where: str, limit: int) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except DAMAGED as error:
        raise StoreError(f"{where} holds no readable PEM certificate: {error}", "issue the identity again") from error
    if len(certificates) > limit:
        raise StoreError(f"{where} holds more than {limit} certificates")
    if pem.count(_CERTIFICATE_BEGINS) != len(certificates):  # the library silently skips a last block without an end
        raise StoreError(f"{where} is cut off within a certificate", "issue the identity again")
    return certificates


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate is marked as an authority's (RFC 5280, 4.2.1.9)."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, *DAMAGED):
        return False
