"""A private key encrypted with a passphrase: PKCS#8 with PBES2 (RFC 5958, RFC 8018), which OpenSSL reads too.

The library's own PKCS#8 encryption uses 2048 rounds, enough for a random passphrase. This file may be carried around
and its passphrase is typed, so it uses as many rounds as NIST SP 800-132 and OWASP recommend.
"""

from __future__ import annotations

import base64
import os

from cryptography.hazmat.primitives import hashes, padding
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.pki.x509.keys import PrivateKey

ROUNDS = 600_000
"""PBKDF2-HMAC-SHA-256 rounds (OWASP Password Storage Cheat Sheet, 2023)."""
SALT_BYTES = 16
KEY_BYTES = 32
LINE_CHARACTERS = 64
"""Of a PEM file (RFC 7468, section 2)."""

# Object identifiers, encoded: RFC 8018, appendix A and C; NIST CSOR.
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_PBKDF2 = bytes.fromhex("06092a864886f70d01050c")
_HMAC_SHA256 = bytes.fromhex("06082a864886f70d0209")
_AES256_CBC = bytes.fromhex("060960864801650304012a")
_NULL = bytes.fromhex("0500")
_INTEGER, _OCTETS, _SEQUENCE = 0x02, 0x04, 0x30


def encrypt_key(key: PrivateKey, passphrase: bytes, *, rounds: int = ROUNDS) -> bytes:
    """``key`` as ``ENCRYPTED PRIVATE KEY`` in PEM: AES-256-CBC under a key stretched from ``passphrase``."""
    salt, vector = os.urandom(SALT_BYTES), os.urandom(algorithms.AES.block_size // 8)
    stretched = PBKDF2HMAC(hashes.SHA256(), KEY_BYTES, salt, rounds).derive(passphrase)
    padder = padding.PKCS7(algorithms.AES.block_size).padder()
    plain = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    encryptor = Cipher(algorithms.AES(stretched), modes.CBC(vector)).encryptor()
    data = encryptor.update(padder.update(plain) + padder.finalize()) + encryptor.finalize()
    count = rounds.to_bytes(rounds.bit_length() // 8 + 1, "big")
    parameters = _der(_SEQUENCE, _der(_OCTETS, salt), _der(_INTEGER, count), _der(_SEQUENCE, _HMAC_SHA256, _NULL))
    derivation = _der(_SEQUENCE, _PBKDF2, parameters)
    cipher = _der(_SEQUENCE, _AES256_CBC, _der(_OCTETS, vector))
    algorithm = _der(_SEQUENCE, _PBES2, _der(_SEQUENCE, derivation, cipher))
    body = base64.b64encode(_der(_SEQUENCE, algorithm, _der(_OCTETS, data)))
    lines = (body[start : start + LINE_CHARACTERS] for start in range(0, len(body), LINE_CHARACTERS))
    label = b"ENCRYPTED PRIVATE KEY-----"
    return b"-----BEGIN " + label + b"\n" + b"\n".join(lines) + b"\n-----END " + label + b"\n"


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    if len(content) < 0x80:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content
