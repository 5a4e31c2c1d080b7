"""JKS keystores (Sun's own format, version 2) for Java programs that read nothing else; bytes in, bytes out.

The format is as old as Java: its key protection and its seal are SHA-1 (see ``KeyProtector`` and ``JavaKeyStore`` of
the JDK's ``sun.security.provider``). Only the long random password and the file's mode protect the key. Use PKCS#12
wherever it is supported.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.pki.x509.keys import PrivateKey

MAGIC = 0xFEEDFEED
VERSION = 2
KEY_ENTRY, TRUSTED_ENTRY = 1, 2
SALT_BYTES = 20
MAX_ENTRIES = 1000
"""Most entries, and most certificates of one entry, that are read."""
_SEAL = b"Mighty Aphrodite"
"""Constant that the format hashes into its seal."""
_PROTECTED_HEAD = bytes.fromhex("300e060a2b060104012a021101010500")
"""AlgorithmIdentifier of Sun's key protector, 1.3.6.1.4.1.42.2.17.1.1 with NULL parameters, encoded."""


def jks_key_store(
    key: PrivateKey, leaf: x509.Certificate, chain: Sequence[x509.Certificate], password: bytes, *, alias: str
) -> bytes:
    """A keystore with one key and its chain; ``password`` (ASCII) opens both the store and the key."""
    plain = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    protected = _protect(plain, _wide(password))
    certificates = [leaf, *chain]
    entry = (
        _head(KEY_ENTRY, alias, leaf)
        + _sized(protected)
        + struct.pack(">I", len(certificates))
        + b"".join(_certificate(certificate) for certificate in certificates)
    )
    return _store([entry], password)


def jks_trust_store(anchors: Sequence[x509.Certificate], password: bytes) -> bytes:
    """A trust store with the ``anchors``."""
    entries = [
        _head(TRUSTED_ENTRY, f"anchor-{number}", anchor) + _certificate(anchor)
        for number, anchor in enumerate(anchors, 1)
    ]
    return _store(entries, password)


def read_jks(data: bytes, password: bytes) -> tuple[bool, list[x509.Certificate]]:
    """Whether a store has a key, and its certificates in order; keys are not decrypted.

    Raises:
        ValueError: no JKS store, damaged, or sealed with another password.
    """
    content, seal = data[:-SALT_BYTES], data[-SALT_BYTES:]
    # The seal first, so that only data from the holder of the password is parsed.
    if not hmac.compare_digest(seal, _sha1(_wide(password) + _SEAL + content)):
        raise ValueError("not a JKS store that this password opens")
    reader = _Reader(content)
    magic, version, count = (reader.number(4) for _ in range(3))
    if (magic, version) != (MAGIC, VERSION) or count > MAX_ENTRIES:
        raise ValueError("not a JKS store of version 2")
    has_key, certificates = False, []
    for _ in range(count):
        tag = reader.number(4)
        reader.take(reader.number(2))
        reader.take(8)
        following = 1
        if tag == KEY_ENTRY:
            has_key = True
            reader.take(reader.number(4))
            following = reader.number(4)
        if following > MAX_ENTRIES:
            raise ValueError("too many certificates")
        for _ in range(following):
            reader.take(reader.number(2))
            certificates.append(x509.load_der_x509_certificate(reader.take(reader.number(4))))
    return has_key, certificates


class _Reader:
    """Reads bytes from the front, never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise ValueError("the JKS store ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")


def _store(entries: Sequence[bytes], password: bytes) -> bytes:
    content = struct.pack(">III", MAGIC, VERSION, len(entries)) + b"".join(entries)
    return content + _sha1(_wide(password) + _SEAL + content)


def _head(tag: int, alias: str, certificate: x509.Certificate) -> bytes:
    # The time of an entry is informational; using the certificate's makes equal content equal bytes.
    milliseconds = int(certificate.not_valid_before_utc.timestamp() * 1000)
    return struct.pack(">I", tag) + _text(alias) + struct.pack(">Q", milliseconds)


def _certificate(certificate: x509.Certificate) -> bytes:
    return _text("X.509") + _sized(certificate.public_bytes(Encoding.DER))


def _protect(plain: bytes, wide: bytes) -> bytes:
    salt = digest = os.urandom(SALT_BYTES)
    stream = bytearray()
    while len(stream) < len(plain):
        digest = _sha1(wide + digest)
        stream += digest
    hidden = bytes(one ^ other for one, other in zip(plain, stream, strict=False))
    return _der(0x30, _PROTECTED_HEAD + _der(0x04, salt + hidden + _sha1(wide + plain)))


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _wide(password: bytes) -> bytes:
    return password.decode("ascii").encode("utf-16-be")


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    return struct.pack(">H", len(data)) + data


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _der(tag: int, content: bytes) -> bytes:
    if len(content) < 0x80:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content
