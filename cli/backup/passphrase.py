"""A short text encrypted with a passphrase, as an age file in ASCII armour (C2SP, age.md: scrypt recipient).

pyrage does the same, but chooses the work factor by the speed of the machine, and refuses to decrypt one that seems too
high: a backup might not open on a busy machine. Here it is fixed.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import textwrap

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from sluice.cli.backup.errors import BackupDamaged

WORK_FACTOR = 17
"""Logarithm of scrypt's N: 128 MiB, and about half a second."""
MAX_WORK_FACTOR = 20
"""Highest accepted work factor of a foreign file: 1 GiB."""
MAX_TEXT_BYTES = 1024
BEGIN, END = "-----BEGIN AGE ENCRYPTED FILE-----", "-----END AGE ENCRYPTED FILE-----"

_COLUMNS = 64
_VERSION = b"age-encryption.org/v1"
_LABEL = _VERSION + b"/scrypt"
_FILE_KEY_BYTES = _SALT_BYTES = _NONCE_BYTES = 16
_ZERO_NONCE = bytes(12)
_ONLY_CHUNK = bytes(11) + b"\1"
_FILE = re.compile(
    rb"(age-encryption\.org/v1\n"
    rb"-> scrypt (?P<salt>[A-Za-z0-9+/]{22}) (?P<factor>[1-9][0-9]?)\n"
    rb"(?P<wrapped>[A-Za-z0-9+/]{43})\n"
    rb"---) (?P<mac>[A-Za-z0-9+/]{43})\n"
    rb"(?P<nonce>.{16})(?P<payload>.{16,})",
    re.DOTALL,
)


def encrypt_text(text: bytes, passphrase: str, *, work_factor: int = WORK_FACTOR) -> bytes:
    """Encrypt ``text`` with a passphrase, in armour."""
    file_key, salt, nonce = os.urandom(_FILE_KEY_BYTES), os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    wrapped = ChaCha20Poly1305(_stretched(passphrase, salt, work_factor)).encrypt(_ZERO_NONCE, file_key, None)
    header = b"%s\n-> scrypt %s %d\n%s\n---" % (_VERSION, _encode(salt), work_factor, _encode(wrapped))
    payload = ChaCha20Poly1305(_derived(file_key, nonce, b"payload")).encrypt(_ONLY_CHUNK, text, None)
    file = header + b" " + _encode(_mac(file_key, header)) + b"\n" + nonce + payload
    lines = textwrap.wrap(base64.b64encode(file).decode(), _COLUMNS)
    return "\n".join([BEGIN, *lines, END, ""]).encode()


def decrypt_text(armoured: bytes, passphrase: str) -> bytes:
    """The inverse of :func:`encrypt_text`; raises :class:`BackupDamaged`."""
    try:
        begin, *lines, end = armoured.decode("ascii").splitlines()
        match = _FILE.fullmatch(base64.b64decode("".join(lines), validate=True))
    except ValueError:
        match, begin, end = None, "", ""
    if match is None or (begin, end) != (BEGIN, END) or len(match["payload"]) > MAX_TEXT_BYTES:
        raise BackupDamaged("the key at the beginning is not one of a backup")
    if (factor := int(match["factor"])) > MAX_WORK_FACTOR:
        raise BackupDamaged(f"the key at the beginning asks for a work factor of {factor}, more than {MAX_WORK_FACTOR}")
    try:
        wrapping = ChaCha20Poly1305(_stretched(passphrase, _decode(match["salt"]), factor))
        file_key = wrapping.decrypt(_ZERO_NONCE, _decode(match["wrapped"]), None)
        if not hmac.compare_digest(_mac(file_key, match[1]), _decode(match["mac"])):
            raise BackupDamaged("the key at the beginning was changed")
        key = _derived(file_key, match["nonce"], b"payload")
        return ChaCha20Poly1305(key).decrypt(_ONLY_CHUNK, match["payload"], None)
    except InvalidTag:
        raise BackupDamaged("the passphrase is another one, or the key at the beginning was changed") from None


def _stretched(passphrase: str, salt: bytes, factor: int) -> bytes:
    return Scrypt(salt=_LABEL + salt, length=32, n=1 << factor, r=8, p=1).derive(passphrase.encode())


def _derived(file_key: bytes, salt: bytes | None, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt, info).derive(file_key)


def _mac(file_key: bytes, header: bytes) -> bytes:
    return hmac.digest(_derived(file_key, None, b"header"), header, "sha256")


def _encode(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
