"""What a configuration for another program is made from, and the key stores and the heading that most of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pki import keystore
from pki.identity_files import IdentityMaterial

KEY_STORE = "keystore.p12"
TRUST_STORE = "truststore.p12"
PASSWORD_FILE = "stores.pass"  # noqa: S105  the name of a file, not a password

TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384")
"""The suites of TLS 1.3 that every JVM has; ChaCha20 is left out, for the JDK's is seven times slower."""


@dataclass(frozen=True, slots=True)
class Handover:
    """An identity on its way to another program.

    Attributes:
        identity: what is handed over.
        directory: where the files will be: absolute, and plain enough to need no quoting anywhere.
        password: opens both stores.
        crl_pem: the revocation lists of the identity's anchors; empty when there are none.
        peers: SPIFFE IDs that may be at the other end, or ``spiffe://…/*`` for all below; none: all of the domain.
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
        """The files of a JVM: key store, trust store, and their password."""
        identity, password = self.identity, self.password.encode()
        return {
            PASSWORD_FILE: password,  # no line break: ZooKeeper would take it for a part of the password
            TRUST_STORE: keystore.trust_store(identity.anchors, password),
            KEY_STORE: keystore.key_store(identity.key, identity.leaf, identity.chain, password),
        }

    def heading(self, program: str, proven: str, *notes: str) -> str:
        """Comment lines for the top of a file; every program here takes ``#``."""
        end = self.identity.leaf.not_valid_after_utc
        lines = (
            f"{program}: mutual TLS as {self.identity.spiffe_id}; the certificate ends at {end:%Y-%m-%d %H:%M} UTC.",
            f"Written by `sluice pki export`; proven with {proven}.",
            "Exporting again replaces all files of this directory in place, and keeps the stores' password.",
            *notes,
        )
        return "".join(f"# {line}".rstrip() + "\n" for line in lines)
