"""Path validation: chain to a trust anchor, validity, and permitted use of a certificate.

For people and audits (``sluice pki verify``), because it explains failures. For connections, OpenSSL and
:mod:`sluice.pki.x509.peer_identity` decide. Decisions only; no I/O. Source: RFC 5280, section 6.1; X509-SVID, section
5.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import ExtensionOID

from sluice.core import CertificateRejected
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.keys import check_strength
from sluice.pki.x509.name_constraints import check_below
from sluice.pki.x509.parse_errors import DAMAGED
from sluice.pki.x509.peer_identity import certified_identity, check_purpose
from sluice.pki.x509.profiles import Purpose

MAX_PATH_CERTIFICATES = 8
"""Longest path tried, leaf and anchor included."""
MAX_CANDIDATES = 64
"""Most certificates considered as issuers: limits the work that a crafted chain can cause."""

_WEAK_HASHES = frozenset({"md5", "sha1"})
_PROCESSED = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        ExtensionOID.NAME_CONSTRAINTS,
    }
)
"""Supported extensions; any other critical one is refused (RFC 5280, 4.2)."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The verified identity, and the path from the leaf to the anchor."""

    spiffe_id: SpiffeId
    path: tuple[x509.Certificate, ...]

    @property
    def expires_at(self) -> dt.datetime:
        """When the first certificate of the path expires."""
        return min(certificate.not_valid_after_utc for certificate in self.path)


def verify_chain(
    leaf: x509.Certificate,
    intermediates: Sequence[x509.Certificate],
    anchors: Sequence[x509.Certificate],
    *,
    now: dt.datetime,
    purpose: Purpose | None = None,
    expected: SpiffeId | None = None,
) -> Verified:
    """Verify ``leaf`` at the instant ``now``.

    Args:
        leaf: the certificate in question.
        intermediates: sent by its holder; untrusted.
        anchors: the trust anchors; an intermediate may be one.
        now: with time zone.
        purpose: the required purpose; None: any.
        expected: the identity it must have; None: any valid one.

    Raises:
        CertificateRejected: names the certificate and the rule it breaks.
        InvalidIdentity: its URI name is no identity.
    """
    try:
        return _verify_chain(leaf, intermediates, anchors, now=now, purpose=purpose, expected=expected)
    except DAMAGED as error:
        raise CertificateRejected(f"a certificate of the chain is damaged: {error}") from error


def _verify_chain(
    leaf: x509.Certificate,
    intermediates: Sequence[x509.Certificate],
    anchors: Sequence[x509.Certificate],
    *,
    now: dt.datetime,
    purpose: Purpose | None,
    expected: SpiffeId | None,
) -> Verified:
    # 1. The leaf has a valid SPIFFE ID.
    spiffe_id = certified_identity(leaf)
    if expected is not None and spiffe_id != expected:
        raise CertificateRejected(f"the certificate is of {spiffe_id}, not of {expected}")
    # 2. It may be used for this purpose.
    if purpose is not None:
        check_purpose(leaf, purpose)
    # 3. An unbroken path of signatures leads to an anchor.
    path = build_path(leaf, intermediates, anchors)
    # 4. Every certificate on it is valid now, strong, and understood; every issuer on it may issue.
    for index, certificate in enumerate(path):
        _check_common(certificate, now)
        if index:
            _check_issuer(certificate, below=index - 1)
    # 5. No name violates the constraints of an issuer above, the anchor included (RFC 5280, 4.2.1.10).
    _check_constraints(path)
    return Verified(spiffe_id, path)


def was_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether ``issuer``'s name and signature are those on ``certificate``."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*DAMAGED, InvalidSignature):
        return False
    return True


def build_path(
    leaf: x509.Certificate,
    intermediates: Sequence[x509.Certificate],
    anchors: Sequence[x509.Certificate],
    *,
    issued: Callable[[x509.Certificate, x509.Certificate], bool] = was_issued_by,
) -> tuple[x509.Certificate, ...]:
    """From ``leaf`` to one of ``anchors``, by names and signatures; :class:`CertificateRejected` if there is none.

    ``issued`` says whether the second certificate issued the first.
    """
    if len(intermediates) + len(anchors) > MAX_CANDIDATES:
        raise CertificateRejected(f"more than {MAX_CANDIDATES} certificates to choose issuers from")
    path = [leaf]
    while len(path) < MAX_PATH_CERTIFICATES:
        for anchor in anchors:
            if issued(path[-1], anchor):
                return (*path, anchor)
        following = next((one for one in intermediates if one not in path and issued(path[-1], one)), None)
        if following is None:
            break
        path.append(following)
    raise CertificateRejected(
        f"no path to a trust anchor: nobody trusted issued {describe(path[-1])}, "
        f"which names {path[-1].issuer.rfc4514_string()!r} as its issuer",
        "is it of another authority? compare with `sluice pki inspect`",
    )


def _check_common(certificate: x509.Certificate, now: dt.datetime) -> None:
    what = describe(certificate)
    if now > certificate.not_valid_after_utc:
        raise CertificateRejected(f"{what} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC")
    if now < certificate.not_valid_before_utc:
        raise CertificateRejected(
            f"{what} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC"
        )
    try:
        key = check_strength(certificate.public_key())
    except CertificateRejected as error:
        raise CertificateRejected(f"{what}: {error.what}", error.remedy) from error
    digest = None if isinstance(key, ed25519.Ed25519PublicKey) else certificate.signature_hash_algorithm
    if digest is not None and digest.name in _WEAK_HASHES:
        raise CertificateRejected(f"{what} is signed with {digest.name}")
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in _PROCESSED:
            raise CertificateRejected(f"{what} has the unknown critical extension {extension.oid.dotted_string}")


def _check_issuer(certificate: x509.Certificate, *, below: int) -> None:
    """``below``: the number of authorities between this one and the leaf."""
    what = describe(certificate)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound as error:
        raise CertificateRejected(f"{what} signed another certificate but is not an authority") from error
    if not constraints.ca or not usage.key_cert_sign:
        raise CertificateRejected(f"{what} signed another certificate but is not an authority")
    if constraints.path_length is not None and below > constraints.path_length:
        raise CertificateRejected(f"{what} may have {constraints.path_length} authorities below it, not {below}")


def _check_constraints(path: Sequence[x509.Certificate]) -> None:
    for index, certificate in enumerate(path):
        # A self-issued authority certificate is exempt, a leaf never is (RFC 5280, 6.1.3 (b)).
        if index and certificate.issuer == certificate.subject:
            continue
        for above in path[index + 1 :]:
            try:
                check_below(above, certificate)
            except CertificateRejected as error:
                raise CertificateRejected(f"{describe(certificate)}: {error.what}", error.remedy) from error


def describe(certificate: x509.Certificate) -> str:
    """The name of a certificate in messages."""
    return f"certificate {certificate.subject.rfc4514_string()!r}"
