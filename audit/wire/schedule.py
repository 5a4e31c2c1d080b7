"""Keys of TLS 1.3 (RFC 8446, section 7) and the protection of its records (section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sluice.audit.errors import WireError
from sluice.audit.wire.codec import number, vector
from sluice.audit.wire.numbers import Content


@dataclass(frozen=True, slots=True)
class Suite:
    """Hash and cipher of a TLS 1.3 suite."""

    digest: hashes.HashAlgorithm
    key_bytes: int
    cipher: type[AESGCM | ChaCha20Poly1305]


SUITES = {
    0x1301: Suite(hashes.SHA256(), 16, AESGCM),
    0x1302: Suite(hashes.SHA384(), 32, AESGCM),
    0x1303: Suite(hashes.SHA256(), 32, ChaCha20Poly1305),
}


class Protection:
    """One direction of an encrypted connection."""

    def __init__(self, suite: Suite, secret: bytes) -> None:
        self._cipher = suite.cipher(expand_label(suite.digest, secret, b"key", b"", suite.key_bytes))
        self._iv = int.from_bytes(expand_label(suite.digest, secret, b"iv", b"", 12), "big")
        self._sequence = 0

    def seal(self, kind: int, data: bytes) -> bytes:
        """``data`` as one record."""
        inner = data + number(kind, 1)
        header = number(Content.APPLICATION_DATA, 1) + b"\x03\x03" + number(len(inner) + 16, 2)
        return header + self._cipher.encrypt(self._nonce(), inner, header)

    def open(self, header: bytes, data: bytes) -> tuple[int, bytes]:
        """Type and content of a record; raises :class:`WireError` when it was not made with these keys."""
        try:
            inner = self._cipher.decrypt(self._nonce(), data, header).rstrip(b"\x00")
        except InvalidTag as error:
            raise WireError("a record does not decrypt") from error
        if not inner:
            raise WireError("an encrypted record is empty")
        return inner[-1], inner[:-1]

    def _nonce(self) -> bytes:
        self._sequence += 1
        return number(self._iv ^ (self._sequence - 1), 12)


class KeySchedule:
    """The secrets of one handshake; ``transcript`` holds all messages so far."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._digest = suite.digest
        self._size = suite.digest.digest_size
        self.transcript = b""
        self._handshake = self._client = self._server = b""

    def retry(self, first_hello: bytes) -> None:
        """After a HelloRetryRequest, the first hello counts as its hash alone (RFC 8446, 4.4.1)."""
        self.transcript = b"\xfe" + vector(self._hash(first_hello), 3)

    def derive_handshake(self, shared: bytes) -> tuple[Protection, Protection]:
        """Keys of client and server once the ServerHello is in the transcript."""
        early = _mac(self._digest, bytes(self._size), bytes(self._size))
        self._handshake = _mac(self._digest, self._derived(early), shared)
        self._client = self._secret(self._handshake, b"c hs traffic")
        self._server = self._secret(self._handshake, b"s hs traffic")
        return Protection(self._suite, self._client), Protection(self._suite, self._server)

    def derive_application(self) -> tuple[Protection, Protection]:
        """Keys of client and server once the server's Finished is in the transcript."""
        master = _mac(self._digest, self._derived(self._handshake), bytes(self._size))
        client = self._secret(master, b"c ap traffic")
        return Protection(self._suite, client), Protection(self._suite, self._secret(master, b"s ap traffic"))

    def finished(self, *, server: bool) -> bytes:
        """The content of the Finished that comes next in the transcript."""
        base = self._server if server else self._client
        return _mac(self._digest, expand_label(self._digest, base, b"finished", b"", self._size), self.hash())

    def hash(self) -> bytes:
        """The hash of the transcript."""
        return self._hash(self.transcript)

    def _hash(self, data: bytes) -> bytes:
        digest = hashes.Hash(self._digest)
        digest.update(data)
        return digest.finalize()

    def _derived(self, secret: bytes) -> bytes:
        return expand_label(self._digest, secret, b"derived", self._hash(b""), self._size)

    def _secret(self, secret: bytes, label: bytes) -> bytes:
        return expand_label(self._digest, secret, label, self.hash(), self._size)


def expand_label(digest: hashes.HashAlgorithm, secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
    """HKDF-Expand-Label (RFC 8446, 7.1)."""
    info = number(length, 2) + vector(b"tls13 " + label, 1) + vector(context, 1)
    return HKDFExpand(digest, length, info).derive(secret)


def _mac(digest: hashes.HashAlgorithm, key: bytes, data: bytes) -> bytes:
    """HMAC, which is also HKDF-Extract with ``key`` as salt."""
    mac = hmac.HMAC(key, digest)
    mac.update(data)
    return mac.finalize()
