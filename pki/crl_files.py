"""Revocation lists in identity directories: ``crl.pem``, beside ``ca.pem``.

The file holds the newest list of each trust anchor that has one. It is written by :func:`install_crls` alone, which
lets nothing in that a process would not take: a bad list never replaces a good one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cryptography import x509

from pki.crl import EXPIRY_GRACE, MAX_CRL_BYTES, RevocationList, check_crl, load_crls
from pki.errors import CrlRejected, StoreError
from pki.files import locked, read_bounded, remove_leftovers, write_public
from pki.home import Home
from pki.identity_files import CA_FILE, CHAIN_FILE, read_certificates

CRL_FILE = "crl.pem"

_IDENTITIES = ("pki/identities/*/*", "jobs/*/attempt-*/identity", "work/*/jobs/*/executor-*/identity")
"""Where identity directories are below a home: processes, drivers, executors."""


def identity_directories(home: Home) -> list[Path]:
    """Every identity directory of ``home``, those of jobs included, in a fixed order."""
    return sorted(
        path
        for pattern in _IDENTITIES
        for path in home.root.glob(pattern)
        if not path.name.startswith(".") and (path / CHAIN_FILE).is_file() and (path / CA_FILE).is_file()
    )


def take_newer(
    known: Mapping[bytes, RevocationList],
    offered: Iterable[x509.CertificateRevocationList],
    anchors: Sequence[x509.Certificate],
    now: dt.datetime,
    *,
    grace: dt.timedelta = dt.timedelta(0),
) -> tuple[dict[bytes, RevocationList], list[CrlRejected]]:
    """Merge lists by issuer; what is bad or older than what is known changes nothing and is returned as errors."""
    merged: dict[bytes, RevocationList] = dict(known)
    refused: list[CrlRejected] = []
    for crl in offered:
        try:
            found = check_crl(crl, anchors, now, grace=grace)
        except CrlRejected as error:
            refused.append(error)
            continue
        before = merged.get(found.issuer_key)
        if before is None or found.number >= before.number:
            merged[found.issuer_key] = found
            continue
        refused.append(
            CrlRejected(
                f"the revocation list number {found.number} of {found.issuer.rfc4514_string()[:200]!r} "
                f"is older than number {before.number}, which is in use"
            )
        )
    return merged, refused


def install_crls(directory: Path, pem: bytes, now: dt.datetime) -> bool:
    """Put the lists in ``pem`` into an identity directory; returns whether anything changed.

    Raises:
        CrlRejected: one of them is damaged, foreign, expired, or older than what is there; nothing was changed.
        StoreError: the directory cannot be read or written.
    """
    offered = load_crls(pem)
    with locked(directory):
        remove_leftovers(directory, CRL_FILE)
        anchors = read_certificates(directory / CA_FILE)
        path = directory / CRL_FILE
        present = read_bounded(path, MAX_CRL_BYTES) if path.exists() else b""
        merged, refused = take_newer(_usable(present, anchors, now), offered, anchors, now)
        if refused:
            raise refused[0]
        content = b"".join(merged[issuer].pem for issuer in sorted(merged))
        if content == present:
            return False
        write_public(path, content)
    return True


def _usable(pem: bytes, anchors: Sequence[x509.Certificate], now: dt.datetime) -> dict[bytes, RevocationList]:
    """What counts of a file that is there; one that somebody damaged counts as empty, so that it can be replaced."""
    try:
        return take_newer({}, load_crls(pem), anchors, now, grace=EXPIRY_GRACE)[0] if pem else {}
    except CrlRejected:
        return {}


def push_crls(home: Home, lists: Sequence[RevocationList], now: dt.datetime) -> tuple[list[Path], list[str]]:
    """Put ``lists`` into every identity directory of ``home`` that trusts their issuers.

    Returns the directories that changed, and for each one that could not be written the reason: one bad directory
    does not keep a revocation from the others.
    """
    changed, failed = [], []
    for directory in identity_directories(home):
        try:
            trusted = {anchor.subject for anchor in read_certificates(directory / CA_FILE)}
            pem = b"".join(each.pem for each in lists if each.issuer in trusted)
            if pem and install_crls(directory, pem, now):
                changed.append(directory)
        except (StoreError, CrlRejected) as error:
            if directory.exists():  # a job's directory may have gone meanwhile
                failed.append(f"{directory}: {error}")
    return changed, failed
