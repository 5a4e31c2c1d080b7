"""Selects trust anchors and CRLs that Envoy can use together. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography import x509

from sluice.pki.revocation.crl import RevocationList


def trusted_anchors(
    anchors: Sequence[x509.Certificate], lists: Sequence[RevocationList]
) -> tuple[tuple[x509.Certificate, ...], tuple[RevocationList, ...]]:
    """Anchors and CRLs that fit together.

    Once Envoy has a CRL, it refuses all peers whose issuer has none. So while other authorities have CRLs, one without
    a CRL is not trusted until it has one. Without any CRL, nobody was revoked yet, as everywhere else.
    """
    subjects = {anchor.subject.public_bytes() for anchor in anchors}
    counting = tuple(each for each in lists if each.issuer_key in subjects)
    listed = {each.issuer_key for each in counting}
    covered = tuple(anchor for anchor in anchors if anchor.subject.public_bytes() in listed)
    return covered or tuple(anchors), counting
