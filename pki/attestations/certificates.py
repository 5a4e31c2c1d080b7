"""Signatures by the key of an X.509 identity, and their signers. No I/O.

The certificates come with the signature and are untrusted until :meth:`Signer.verify` has found a path to an anchor, at
the time of signing. What is signed is always the pre-authentication encoding of DSSE, which names the type of the
content, so that a signature for another purpose never verifies.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core import CertificateRejected, InvalidIdentity, PkiError
from sluice.pki.identities import IdentityMaterial
from sluice.pki.spiffe_id import Role
from sluice.pki.x509 import (
    DAMAGED,
    PrivateKey,
    Verified,
    check_strength,
    load_certificate,
    public_key_der,
    verify_chain,
)

MAX_CERTIFICATES = 4
"""Leaf and intermediates that come with a signature."""
MAX_CERTIFICATE_BYTES = 16 << 10
MAX_SIGNATURE_BYTES = 1024

_PSS = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


class AttestationRejected(PkiError):
    """A signed statement that does not verify."""


def pre_authentication_encoding(kind: str, content: bytes) -> bytes:
    """What is signed: ``PAE`` of the DSSE protocol, version 1."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(content), content)


@dataclass(frozen=True, slots=True)
class Signer:
    """Who claims to have signed: the leaf, and the intermediates that came with it."""

    leaf: x509.Certificate
    intermediates: tuple[x509.Certificate, ...]

    @classmethod
    def decode(cls, certificates: Sequence[str]) -> Signer:
        """Decode base64 of DER, the leaf first; raises :class:`AttestationRejected`."""
        if not 0 < len(certificates) <= MAX_CERTIFICATES:
            raise AttestationRejected(f"{len(certificates)} certificates come with a signature", "1 to 4 are possible")
        try:
            leaf, *others = (load_certificate(decode_base64(each, MAX_CERTIFICATE_BYTES)) for each in certificates)
        except DAMAGED as error:
            raise AttestationRejected("a certificate beside a signature is damaged") from error
        return cls(leaf, tuple(others))

    @property
    def key_id(self) -> str:
        """SHA-256 of the public key (DER), in hexadecimal."""
        try:
            return hashlib.sha256(public_key_der(self.leaf.public_key())).hexdigest()
        except DAMAGED as error:
            raise AttestationRejected("the key of a certificate beside a signature is damaged") from error

    @property
    def serial(self) -> str:
        """The serial number of the leaf, in hexadecimal."""
        return f"{self.leaf.serial_number:x}"

    def verify(
        self,
        kind: str,
        content: bytes,
        signature: bytes,
        *,
        anchors: Sequence[x509.Certificate],
        at: dt.datetime,
        roles: AbstractSet[Role],
    ) -> Verified:
        """Verify that a process in one of ``roles`` has signed ``content`` with a certificate that was valid ``at``.

        Raises:
            AttestationRejected: names the first rule that is broken.
        """
        # 1. The certificate: a path to an anchor, and every certificate on it valid at the time of signing.
        try:
            verified = verify_chain(self.leaf, self.intermediates, anchors, now=at)
            key = check_strength(self.leaf.public_key())
        except (CertificateRejected, InvalidIdentity) as error:
            raise AttestationRejected(f"the signer is not trusted: {error.what}", error.remedy) from error
        if len(set(self.intermediates)) < len(self.intermediates) or not {*self.intermediates} <= {*verified.path[1:]}:
            raise AttestationRejected("the signature has certificates that are not its signer's")
        # 2. The role. Certificates of jobs, TaskManagers and users are valid too, but must not sign statements.
        if verified.spiffe_id.role not in roles:
            wanted = ", ".join(sorted(roles))
            raise AttestationRejected(f"{verified.spiffe_id} may not sign this: the role must be {wanted}")
        # 3. The signature.
        signed = pre_authentication_encoding(kind, content)
        try:
            if isinstance(key, ed25519.Ed25519PublicKey):
                key.verify(signature, signed)
            elif isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, signed, ec.ECDSA(_hash_of(key.curve)))
            else:
                key.verify(signature, signed, _PSS, hashes.SHA256())
        except InvalidSignature as error:
            raise AttestationRejected(
                f"the signature is not of {verified.spiffe_id} over this content",
                "it was changed, or assembled from parts",
            ) from error
        return verified


def sign_with(material: IdentityMaterial, kind: str, content: bytes) -> bytes:
    """A signature over ``content`` by the key of an identity."""
    key: PrivateKey = material.key
    signed = pre_authentication_encoding(kind, content)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(signed)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(signed, ec.ECDSA(_hash_of(key.curve)))
    return key.sign(signed, _PSS, hashes.SHA256())


def certificates_of(material: IdentityMaterial) -> tuple[str, ...]:
    """The certificates to send with a signature: the leaf and its intermediates, in base64 of DER."""
    return tuple(
        encode_base64(each.public_bytes(Encoding.DER)) for each in (material.leaf, *material.chain)[:MAX_CERTIFICATES]
    )


def encode_base64(data: bytes) -> str:
    """Standard base64 (RFC 4648, section 4)."""
    return base64.b64encode(data).decode()


def decode_base64(text: str, limit: int) -> bytes:
    """Decode canonical base64; raises :class:`AttestationRejected` for any other or too long ``text``."""
    if len(text) > 4 * (limit // 3 + 1):
        raise AttestationRejected(f"a part of the document has more than {limit} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AttestationRejected("a part of the document is not in base64") from error
    if encode_base64(data) != text:
        raise AttestationRejected("a part of the document is in base64 that is not canonical")
    return data


def _hash_of(curve: ec.EllipticCurve) -> hashes.SHA256 | hashes.SHA384:
    return hashes.SHA384() if curve.key_size > 256 else hashes.SHA256()
