"""Proof of possession for a certificate that was not used in a handshake: a signature over the new request.

The signed text has its own prefix, so that a signature for another purpose does not verify, and includes the whole
request, so that it is valid for the one new key only.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from sluice.pki.errors import IssuanceRefused
from sluice.pki.x509 import PrivateKey

_CONTEXT = b"sluice public certificate renewal 1\0"
_PSS = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


def prove_possession(key: PrivateKey, csr_pem: bytes) -> bytes:
    """Sign the request ``csr_pem`` with the key of the present certificate: ECDSA or RSA-PSS, with SHA-256."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(_CONTEXT + csr_pem, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(_CONTEXT + csr_pem, _PSS, hashes.SHA256())
    raise IssuanceRefused("the key of the public certificate is neither ECDSA nor RSA", "enrol again with a join token")


def check_possession(certificate: x509.Certificate, csr_pem: bytes, proof: bytes) -> None:
    """Refuse a request that the key of ``certificate`` has not signed; :class:`IssuanceRefused`."""
    key = certificate.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(proof, _CONTEXT + csr_pem, ec.ECDSA(hashes.SHA256()))
            return
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(proof, _CONTEXT + csr_pem, _PSS, hashes.SHA256())
            return
    except InvalidSignature:
        pass
    raise IssuanceRefused("the requester does not show that it holds the key of the public certificate")
