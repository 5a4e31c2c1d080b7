"""Which trust anchors and revocation lists Envoy can be given together. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography import x509

from sluice.pki.revocation.crl import RevocationList


def trusted_anchors(
    anchors: Sequence[x509.Certificate], lists: Sequence[RevocationList]
) -> tuple[tuple[x509.Certificate, ...], tuple[RevocationList, ...]]:
    """Anchors and lists that go together.

    Once Envoy has a list it refuses everybody whose issuer has none. Lists are not given up for that: an authority
    without one, while others have theirs, is not trusted until its list is there. When there is no list at all,
    nobody was revoked yet, as everywhere else.
    """
    subjects = {anchor.subject.public_bytes() for anchor in anchors}
    counting = tuple(each for each in lists if each.issuer_key in subjects)
    listed = {each.issuer_key for each in counting}
    covered = tuple(anchor for anchor in anchors if anchor.subject.public_bytes() in listed)
    return covered or tuple(anchors), counting
