"""The paths of published trust bundles, for readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.pki.x509 import AuthorityKind


def bundle_file(pki: Path, kind: AuthorityKind) -> Path:
    """Where the bundle of ``kind`` is published."""
    return pki / "trust" / f"{kind}.pem"
