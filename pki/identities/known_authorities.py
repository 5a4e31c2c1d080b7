"""Named authorities to compare certificates with: those of a home and those of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sluice.pki.authorities import AuthorityStore
from sluice.pki.identities.directory import read_certificates
from sluice.pki.x509 import AuthorityKind


@dataclass(frozen=True, slots=True)
class Known:
    """An authority: ``name`` as in "the home's internal authority"."""

    name: str
    certificate: x509.Certificate


def authorities_of_home(pki: Path) -> list[Known]:
    """Those below ``pki``; none when there are none. A damaged one is a :class:`sluice.core.errors.StoreError`."""
    store = AuthorityStore(pki)
    return [
        Known(f"the home's {kind} authority", store.certificate(kind)) for kind in AuthorityKind if store.exists(kind)
    ]


def authorities_of_file(path: Path) -> list[Known]:
    """The certificates of a PEM file, in its order."""
    return [
        Known(f"{certificate.subject.rfc4514_string()!r} of {path}", certificate)
        for certificate in read_certificates(path)
    ]


def without_repeats(known: Sequence[Known]) -> list[Known]:
    """Each certificate once, under its first name."""
    return list({each.certificate: each for each in reversed(known)}.values())[::-1]
