"""Updates ``ca.pem`` in every identity directory of a home to the anchors that are trusted now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sluice.core import LOCK_PATIENCE_SECONDS, Home, StoreError, locked, remove_leftovers, write_public
from sluice.pki.authorities import AuthorityStore, TrustStore, read_rotation, to_pem
from sluice.pki.identities import CA_FILE, read_certificates
from sluice.pki.revocation import identity_directories
from sluice.pki.x509 import DAMAGED, ISSUING, key_id


@dataclass(frozen=True, slots=True)
class TrustedSide:
    """The trust of one side; ``known``: every generation of it, including those to be removed."""

    bundle: tuple[x509.Certificate, ...]
    known: frozenset[str]


def sides_of(pki: Path) -> tuple[TrustedSide, ...]:
    """The internal and the edge side as they are now."""
    rotation, trust = read_rotation(pki), TrustStore(pki)
    sides = []
    for kind in ISSUING:
        if not AuthorityStore(pki).exists(kind):
            continue
        bundle = trust.anchors(kind)
        known = {key_id(anchor) for anchor in bundle}
        if rotation is not None and (both := rotation.generations.get(kind)) is not None:
            known |= {both.old, both.new}
        sides.append(TrustedSide(bundle, frozenset(known)))
    return tuple(sides)


def update_anchors(directory: Path, side: TrustedSide) -> bool:
    """Update ``ca.pem`` of an identity directory; returns whether anything changed.

    An identity of another side is unchanged, and so are anchors that were added by hand.
    """
    with locked(
        directory.parent, patience=LOCK_PATIENCE_SECONDS
    ):  # the lock of sluice.pki.identities.directory.write_identity
        remove_leftovers(directory, CA_FILE)
        present = read_certificates(directory / CA_FILE)
        added = [anchor for anchor in present if _key_id(anchor) not in side.known]
        if len(added) == len(present) or (wanted := [*side.bundle, *added]) == present:
            return False
        write_public(directory / CA_FILE, to_pem(*wanted))
    return True


def push_trust(home: Home, sides: Sequence[TrustedSide] | None = None) -> tuple[list[Path], list[str]]:
    """Update every identity directory of ``home``; returns those that changed, and the errors.

    Install CRLs after it (``push_crls``), because only CRLs of trusted issuers are accepted.
    """
    changed, failed = [], []
    wanted = sides_of(home.pki) if sides is None else sides
    for directory in identity_directories(home):
        for side in wanted:
            try:
                if update_anchors(directory, side):
                    changed.append(directory)
            except StoreError as error:
                if directory.exists():  # a job's directory may have gone meanwhile
                    failed.append(f"{directory}: {error}")
    return changed, failed


def _key_id(anchor: x509.Certificate) -> str:
    try:
        return key_id(anchor)
    except DAMAGED:
        return ""
