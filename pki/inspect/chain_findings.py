"""Problems of certificates and chains, for ``inspect`` and ``doctor``. No I/O.

``verify_chain`` stops at the first problem; this finds all of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtensionOID

from sluice.core import CertificateRejected, PkiError
from sluice.pki.inspect.findings import Finding, Severity
from sluice.pki.x509 import DAMAGED, Purpose, certified_identity, check_purpose, check_strength, describe, was_issued_by

WEAK_HASHES = frozenset({"md5", "sha1"})
BROKEN_RSA_BITS = 2048
"""Below this an RSA key is an error and not a warning (NIST SP 800-131A)."""
_ISSUE_AGAIN = "sluice pki issue"


def certificate_findings(certificate: x509.Certificate, where: str, now: dt.datetime) -> list[Finding]:
    """Validity at ``now``, key and signature of one certificate; ``where`` it is."""
    found = []
    what, end, start = describe(certificate), certificate.not_valid_after_utc, certificate.not_valid_before_utc
    if now > end:
        found.append(
            Finding.error(
                "expired",
                where,
                f"{what} expired at {end:%Y-%m-%d %H:%M:%S} UTC",
                why="it is not accepted any more",
                remedy="sluice pki renew, or `sluice pki issue` for a new one",
            )
        )
    elif now < start:
        found.append(
            Finding.error(
                "not-yet-valid",
                where,
                f"{what} is not valid before {start:%Y-%m-%d %H:%M:%S} UTC",
                why="this machine's clock is slow, or that of its authority was fast",
                remedy="timedatectl status",
            )
        )
    return found + _strength_findings(certificate, what, where)


def _strength_findings(certificate: x509.Certificate, what: str, where: str) -> list[Finding]:
    found = []
    try:
        check_strength(certificate.public_key())
    except CertificateRejected as error:
        found.append(
            Finding(
                severity=_weakness(certificate),
                code="weak-key",
                path=where,
                what=f"{what}: {error.what}",
                why="it can be broken before it expires, and Sluice's own processes refuse it",
                remedy=f"{_ISSUE_AGAIN}, after `pki.key_algorithm` was set",
            )
        )
    if weak := _weak_hash(certificate):
        found.append(
            Finding.error(
                "weak-hash",
                where,
                f"{what} is signed with {weak}",
                why="such a signature can be forged by a collision",
                remedy=_ISSUE_AGAIN,
            )
        )
    return found


def _weak_hash(certificate: x509.Certificate) -> str:
    """The name of a weak signature hash; empty if it is strong, or the signature has no hash."""
    try:
        digest = certificate.signature_hash_algorithm
    except UnsupportedAlgorithm:
        return ""
    return digest.name if digest is not None and digest.name in WEAK_HASHES else ""


def _weakness(certificate: x509.Certificate) -> Severity:
    key = certificate.public_key()
    broken = isinstance(key, rsa.RSAPublicKey) and key.key_size < BROKEN_RSA_BITS
    return Severity.ERROR if broken else Severity.WARNING


def chain_findings(chain: Sequence[x509.Certificate], where: str) -> list[Finding]:
    """The order of a chain, leaf first, each followed by its issuer (RFC 8446, 4.4.2), and what is missing in it."""
    if not chain:
        return []
    path = _path(chain)
    end = path[-1]
    found = []
    if len(path) == 1 and end.subject == end.issuer:
        found.append(
            Finding.warning(
                "self-signed",
                where,
                f"{describe(end)} is signed by its own key",
                why="no authority vouches for it",
                remedy=_ISSUE_AGAIN,
            )
        )
    elif len(path) == 1:
        found.append(
            Finding.error(
                "missing-intermediate",
                where,
                f"the issuer of {describe(end)}, {end.issuer.rfc4514_string()!r}, is not shown with it",
                why="a client that trusts only the root cannot build a path to it",
                remedy="append the authority's certificate to the chain, or issue the identity again",
            )
        )
    if list(chain[: len(path)]) != path:
        found.append(
            Finding.warning(
                "chain-order",
                where,
                "a certificate of the chain is not followed by its issuer",
                why="some clients do not reorder the chain, and find no path",
                remedy="order it: leaf, its issuer, the issuer's issuer; or issue the identity again",
            )
        )
    elif extra := len(chain) - len(path):
        found.append(
            Finding.note(
                "chain-extra",
                where,
                f"{extra} certificates of the chain are on no path",
                why="each handshake carries them for nothing",
                remedy="leave them out",
            )
        )
    return found


def _path(chain: Sequence[x509.Certificate]) -> list[x509.Certificate]:
    """The path from the leaf by signatures, in whatever order the issuers are."""
    path = [chain[0]]
    while path[-1].subject != path[-1].issuer:
        following = next((one for one in chain if one not in path and _is_issuer(one, path[-1])), None)
        if following is None:
            break
        path.append(following)
    return path


def _is_issuer(candidate: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Whether it is the issuer by signature, or by name if the library does not check such a weak signature."""
    if was_issued_by(certificate, candidate):
        return True
    return bool(_weak_hash(certificate)) and certificate.issuer == candidate.subject


def spiffe_findings(leaf: x509.Certificate, where: str, purpose: Purpose | None = None) -> list[Finding]:
    """The rules of X509-SVID, section 5; a leaf without a URI name is only noted, since it does not claim to be one."""
    try:
        certified_identity(leaf)
        if purpose is not None:
            check_purpose(leaf, purpose)
    except PkiError as error:
        foreign = not _has_uri(leaf)
        return [
            Finding(
                severity=Severity.NOTE if foreign else Severity.ERROR,
                code="no-spiffe-id" if foreign else "spiffe-rules",
                path=where,
                what=f"{describe(leaf)}: {error}",
                why="no process of a cluster accepts it as an identity",
                remedy="" if foreign else _ISSUE_AGAIN,
            )
        ]
    return []


def _has_uri(leaf: x509.Certificate) -> bool:
    try:
        names = leaf.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except (x509.ExtensionNotFound, *DAMAGED):
        return False
    return isinstance(names, x509.SubjectAlternativeName) and bool(
        names.get_values_for_type(x509.UniformResourceIdentifier)
    )
