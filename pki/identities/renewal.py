"""When an identity is due for renewal, and why."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from sluice.core.errors import StoreError
from sluice.pki.identities.directory import IdentityMaterial, read_identity
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.key_identifiers import issuer_id, key_id


def half_life(material: IdentityMaterial) -> dt.datetime:
    """The middle of the leaf's validity: from then on it is renewed, with half of its life left to retry in."""
    start, end = material.leaf.not_valid_before_utc, material.leaf.not_valid_after_utc
    return start + (end - start) / 2


def is_superseded(material: IdentityMaterial) -> bool:
    """Whether another authority than that of the leaf signs today: it is the first of the anchors (a rotation)."""
    return issuer_id(material.leaf) != key_id(material.anchors[0])


def renewal_reason(directory: Path, spiffe_id: SpiffeId, now: dt.datetime) -> str:
    """Why the identity in ``directory`` must be issued anew at ``now``; empty when it is good.

    A set that is missing, damaged, or of which key and certificate do not belong together (a writer died between
    two files) is a reason like any other.
    """
    try:
        material, _ = read_identity(directory)
    except StoreError as error:
        return error.what
    if material.spiffe_id != spiffe_id:
        return f"it is of {material.spiffe_id}"
    if is_superseded(material):
        return "another authority signs today"
    if now < material.leaf.not_valid_before_utc:
        return "it is not valid yet"
    if now >= half_life(material):
        return f"it is past half of its life, which ends at {material.leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    return ""
