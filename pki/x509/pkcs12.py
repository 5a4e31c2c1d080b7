"""PKCS#12 files for the JVM (RFC 7292): a key with its chain, or trust anchors alone."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PBES,
    PKCS12Certificate,
    load_pkcs12,
    serialize_java_truststore,
    serialize_key_and_certificates,
)

from sluice.pki.x509.keys import PrivateKey
from sluice.pki.x509.parse_errors import DAMAGED

ALIAS = b"identity"
PASSWORD_BYTES = 24
"""Random bytes in a keystore password (before base64)."""
KDF_ROUNDS = 10_000
"""PBKDF2 rounds, as Java's own keytool uses. The passwords are random, so more would only cost time."""

FREQUENT_KDF_ROUNDS = 100
"""Rounds for programs that open their stores often, as ZooKeeper does for each connecting client: only for random
passwords, which more rounds do not improve."""

LEGACY_KDF_ROUNDS = 50_000
"""Rounds of Java 8 before AES."""


def random_password() -> bytes:
    """A password of printable ASCII that nobody has to type."""
    return secrets.token_urlsafe(PASSWORD_BYTES).encode()


def key_store(
    key: PrivateKey,
    leaf: x509.Certificate,
    chain: Sequence[x509.Certificate],
    password: bytes,
    *,
    rounds: int = KDF_ROUNDS,
) -> bytes:
    """A keystore with one entry, ``identity``; AES-256 and HMAC-SHA-256, which Java 8u301 and later read."""
    encryption = (
        PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(rounds)
        .key_cert_algorithm(PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(password)
    )
    return serialize_key_and_certificates(ALIAS, key, leaf, list(chain), encryption)


def legacy_key_store(
    key: PrivateKey, leaf: x509.Certificate, chain: Sequence[x509.Certificate], password: bytes
) -> bytes:
    """A keystore for programs without AES in PKCS#12 (Java before 8u301, Windows before 2019): 3DES and SHA-1."""
    encryption = (
        PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(LEGACY_KDF_ROUNDS)
        .key_cert_algorithm(PBES.PBESv1SHA1And3KeyTripleDESCBC)
        .hmac_hash(hashes.SHA1())  # noqa: S303  such programs require it; the password is random
        .build(password)
    )
    return serialize_key_and_certificates(ALIAS, key, leaf, list(chain), encryption)


def trust_store(anchors: Sequence[x509.Certificate], password: bytes, *, rounds: int = KDF_ROUNDS) -> bytes:
    """A trust store with the ``anchors``, marked as trusted for Java."""
    encryption = (
        PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(rounds)
        .key_cert_algorithm(PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(password)
    )
    entries = [PKCS12Certificate(anchor, f"anchor-{number}".encode()) for number, anchor in enumerate(anchors, 1)]
    return serialize_java_truststore(entries, encryption)


def holds(store: bytes, password: bytes, leaf: x509.Certificate | None, others: Sequence[x509.Certificate]) -> bool:
    """Whether ``store`` opens and holds exactly ``leaf`` with its key (None: no key), and ``others`` in this order."""
    try:
        opened = load_pkcs12(store, password)
    except DAMAGED:
        return False
    found = None if opened.cert is None or opened.key is None else opened.cert.certificate
    return found == leaf and [each.certificate for each in opened.additional_certs] == list(others)
