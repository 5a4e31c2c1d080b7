"""Delta CRLs: large lists are also published in parts, so that updates are small (RFC 5280, 5.2.4).

``crl.pem`` in an authority's directory is always the newest complete list. Beside it, ``base.pem`` is an earlier
complete list and ``delta.pem`` the changes since; together they equal ``crl.pem``. Readers know the base already, and
read only the delta.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from sluice.core import PkiError, read_bounded, write_public
from sluice.pki.authorities import Authority
from sluice.pki.revocation.crl import MAX_CRL_BYTES, Revocation, load_crls, sign_crl
from sluice.pki.x509 import DAMAGED

BASE_FILE = "base.pem"
DELTA_FILE = "delta.pem"
DELTA_THRESHOLD_BYTES = 64 << 10
"""Smallest complete list, in bytes of PEM (some 900 entries), that is published in parts."""
MAX_DELTA_ENTRIES = 1000
"""Most changes since the base; beyond it the next complete list becomes the base."""


def write_parts(
    directory: Path,
    authority: Authority,
    complete: bytes,
    revocations: Sequence[Revocation],
    *,
    number: int,
    now: dt.datetime,
) -> None:
    """Write a delta from the base to ``complete``, or make ``complete`` the base.

    Args:
        directory: of the authority's lists.
        authority: who signs.
        complete: the list just signed, PEM.
        revocations: its content; since the base was signed, entries were only appended.
        number: of ``complete``.
        now: as in ``complete``.
    """
    (directory / DELTA_FILE).unlink(missing_ok=True)
    if len(complete) < DELTA_THRESHOLD_BYTES:
        (directory / BASE_FILE).unlink(missing_ok=True)
        return
    base = _base(directory, revocations, now)
    if base is None or base.next_update_utc is None:
        write_public(directory / BASE_FILE, complete)
        return
    added = revocations[len(base) :]
    lifetime = base.next_update_utc - now
    pem = sign_crl(authority, added, number=number, now=now, lifetime=lifetime, base_number=_number(base))
    write_public(directory / DELTA_FILE, pem)


def drop_parts(directory: Path) -> None:
    """Remove base and delta, because entries are about to leave the list."""
    for name in (DELTA_FILE, BASE_FILE):
        (directory / name).unlink(missing_ok=True)


def read_parts(directory: Path, number: int) -> bytes:
    """Base and delta of the complete list ``number``, or empty; the reader verifies them."""
    base, delta = directory / BASE_FILE, directory / DELTA_FILE
    if not base.exists() or not delta.exists():
        return b""
    try:
        pem = read_bounded(delta, MAX_CRL_BYTES)
        (crl,) = load_crls(pem)
        if _number(crl) != number:
            return b""
        return read_bounded(base, MAX_CRL_BYTES) + pem
    except (PkiError, x509.ExtensionNotFound, *DAMAGED):
        return b""


def _base(
    directory: Path, revocations: Sequence[Revocation], now: dt.datetime
) -> x509.CertificateRevocationList | None:
    """The base, if a delta to it is possible and short."""
    path = directory / BASE_FILE
    if not path.exists():
        return None
    try:
        (base,) = load_crls(read_bounded(path, MAX_CRL_BYTES))
        _number(base)
        count = len(base)
    except (PkiError, x509.ExtensionNotFound, *DAMAGED):
        return None
    # Replace it at half of its life: the complete list is signed again at half of its own, which begins later.
    if base.next_update_utc is None or now > base.last_update_utc + (base.next_update_utc - base.last_update_utc) / 2:
        return None
    if not 0 < count <= len(revocations) or len(revocations) - count > MAX_DELTA_ENTRIES:
        return None
    # A base that is not the beginning of the record would leave something out.
    first, last = revocations[0].number, revocations[count - 1].number
    if any(base.get_revoked_certificate_by_serial_number(serial) is None for serial in (first, last)):
        return None
    return base


def _number(crl: x509.CertificateRevocationList) -> int:
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
