"""Input of configurations for other programs, and the key stores and header that most of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sluice.core import StoreError, read_secret
from sluice.pki.identities import IdentityMaterial
from sluice.pki.x509 import pkcs12 as keystore

KEY_STORE = "keystore.p12"
TRUST_STORE = "truststore.p12"
PASSWORD_FILE = "stores.pass"  # noqa: S105  the name of a file, not a password

TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384")
"""The suites of TLS 1.3 that every JVM has; without ChaCha20, because the JDK's is seven times slower."""


@dataclass(frozen=True, slots=True)
class Handover:
    """An identity to export to another program.

    Attributes:
        identity: what is handed over.
        directory: where the files will be: absolute, and plain enough to need no quoting anywhere.
        password: opens both stores.
        crl_pem: the revocation lists of the identity's anchors; empty when there are none.
        peers: SPIFFE IDs that are accepted as peers, or ``spiffe://…/*`` for all below; none: all of the domain.
    """

    identity: IdentityMaterial
    directory: Path
    password: str = field(repr=False)
    crl_pem: bytes = b""
    peers: tuple[str, ...] = ()

    @property
    def key_store(self) -> Path:
        """Path of the PKCS#12 key store."""
        return self.directory / KEY_STORE

    @property
    def trust_store(self) -> Path:
        """Path of the PKCS#12 trust store."""
        return self.directory / TRUST_STORE

    @property
    def password_file(self) -> Path:
        """Path of the file with the password of both."""
        return self.directory / PASSWORD_FILE

    def stores(self) -> dict[str, bytes]:
        """The files of a JVM: key store, trust store, and their password.

        A store with the right content is kept, because a new one would differ in its salt. ZooKeeper reloads each
        replaced store in a separate thread: of two stores replaced at once, the first may be loaded with the other's
        old content.
        """
        identity, password = self.identity, self.password.encode()
        trust, key = self._present(self.trust_store), self._present(self.key_store)
        if not keystore.holds(trust, password, None, identity.anchors):
            trust = keystore.trust_store(identity.anchors, password, rounds=keystore.FREQUENT_KDF_ROUNDS)
        if not keystore.holds(key, password, identity.leaf, identity.chain):
            key = keystore.key_store(
                identity.key, identity.leaf, identity.chain, password, rounds=keystore.FREQUENT_KDF_ROUNDS
            )
        # No line break after the password: ZooKeeper would read it as part of the password.
        return {PASSWORD_FILE: password, TRUST_STORE: trust, KEY_STORE: key}

    @staticmethod
    def _present(path: Path) -> bytes:
        try:
            return read_secret(path)
        except StoreError:
            return b""

    def heading(self, program: str, tested_with: str, *notes: str) -> str:
        """Comment lines for the top of a file; every program here takes ``#``."""
        end = self.identity.leaf.not_valid_after_utc
        lines = (
            f"{program}: mutual TLS as {self.identity.spiffe_id}; the certificate ends at {end:%Y-%m-%d %H:%M} UTC.",
            f"Written by `sluice pki export`; tested with {tested_with}.",
            "Exporting again replaces in place what has changed, and keeps the stores' password.",
            *notes,
        )
        return "".join(f"# {line}".rstrip() + "\n" for line in lines)
