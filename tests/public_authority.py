"""A third-party CA, public or of a company: a root, an intermediate, and server certificates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice.core.files import write_public, write_secret
from sluice.pki.authorities import to_pem
from sluice.pki.x509 import PrivateKey, key_to_pem

DAY = dt.timedelta(days=1)
USAGES = (ExtendedKeyUsageOID.SERVER_AUTH,)


@dataclass(frozen=True)
class Issued:
    """A server's certificate with its intermediate, and its key."""

    leaf: x509.Certificate
    intermediate: x509.Certificate
    key: PrivateKey

    @property
    def chain_pem(self) -> bytes:
        return to_pem(self.leaf, self.intermediate)

    @property
    def key_pem(self) -> bytes:
        return key_to_pem(self.key)

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Write the chain and the key with certbot's file names; returns their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        chain, key = directory / "fullchain.pem", directory / "privkey.pem"
        write_public(chain, self.chain_pem)
        write_secret(key, self.key_pem)
        return chain, key


class PublicAuthority:
    """Signs any certificate, valid or not."""

    def __init__(self, begin: dt.datetime) -> None:
        self._begin = begin
        self._root_key, self._key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        self.root = self._authority("root", self._root_key, "root", self._root_key)
        self.intermediate = self._authority("intermediate", self._key, "root", self._root_key)

    def issue(
        self,
        *names: str,
        begin: dt.datetime | None = None,
        lifetime: dt.timedelta = 90 * DAY,
        key: PrivateKey | None = None,
        usages: Sequence[x509.ObjectIdentifier] = USAGES,
        more: Sequence[x509.ExtensionType] = (),
    ) -> Issued:
        """Issue a certificate for DNS ``names``."""
        begin = begin or self._begin
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = _builder(names[0] if names else "nobody", "intermediate", key, begin, begin + lifetime)
        extensions: list[x509.ExtensionType] = [x509.BasicConstraints(ca=False, path_length=None), *more]
        if names:
            extensions.append(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]))
        if usages:
            extensions.append(x509.ExtendedKeyUsage(usages))
        for each in extensions:
            builder = builder.add_extension(each, critical=False)
        return Issued(builder.sign(self._key, hashes.SHA256()), self.intermediate, key)

    def _authority(self, name: str, key: PrivateKey, issuer: str, issuer_key: PrivateKey) -> x509.Certificate:
        builder = _builder(name, issuer, key, self._begin - DAY, self._begin + 3650 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return builder.sign(issuer_key, hashes.SHA256())


def _builder(
    subject: str, issuer: str, key: PrivateKey, begin: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
