"""Parties outside the cluster: foreign authorities, and their servers and clients.

trustme issues their certificates, not Sluice, so that a bug in Sluice cannot hide itself. trustme does not support URI
names; a leaf with a SPIFFE ID is built with ``cryptography``.

    provider = OutsideAuthority(tmp_path / "provider")
    directory = provider.issue("localhost", "127.0.0.1")       # key.pem, chain.pem, ca.pem
    impostor = provider.imitate("spiffe://sluice.local/user/ada")
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

SigningKey = ec.EllipticCurvePrivateKey
BOTH_PURPOSES = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)


@dataclass(frozen=True)
class Signer:
    """An authority's certificate and its key."""

    certificate: x509.Certificate
    key: CertificateIssuerPrivateKeyTypes


def sign_leaf(
    key: SigningKey,
    signer: Signer | None,
    *,
    uris: Sequence[str],
    start: dt.datetime,
    end: dt.datetime,
    dns: Sequence[str] = ("localhost",),
    purposes: Sequence[x509.ObjectIdentifier] = BOTH_PURPOSES,
    authority: bool = False,
) -> x509.Certificate:
    """Build a leaf with exactly these contents; it is self-signed if ``signer`` is None."""
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "forged")])
    names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, dns)]
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    usage |= dict.fromkeys(("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    if signer is None:
        issuer, identifier = own, x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    else:
        issuer, identifier = signer.certificate.subject, _key_identifier(signer.certificate)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(purposes)), critical=False)
    return builder.sign(key if signer is None else signer.key, hashes.SHA256())


def _key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    subject = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject.value)


class OutsideAuthority:
    """An authority that is unrelated to the cluster, and the identities that it issues, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca = trustme.CA(organization_name="somebody else")
        self._count = 0
        directory.mkdir(parents=True, exist_ok=True)
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(self._ca.cert_pem.bytes())

    @property
    def signer(self) -> Signer:
        """The authority's certificate and key."""
        key = load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return Signer(self.certificate, key)

    @property
    def certificate(self) -> x509.Certificate:
        """The authority's certificate."""
        return x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())

    def issue(self, *names: str) -> Path:
        """Issue a certificate for host names and addresses; returns a directory with key.pem, chain.pem and ca.pem."""
        leaf = self._ca.issue_cert(*(names or ("localhost", "127.0.0.1")))
        return self._write(leaf.private_key_pem.bytes(), b"".join(each.bytes() for each in leaf.cert_chain_pems))

    def imitate(self, spiffe_id: str, *, dns: Sequence[str] = ("localhost",)) -> Path:
        """Issue a leaf that would be valid if the cluster's authority had signed it; returns its directory."""
        key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
        hour = dt.timedelta(hours=1)
        leaf = sign_leaf(key, self.signer, uris=(spiffe_id,), start=now - hour, end=now + hour, dns=dns)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self._write(pem, leaf.public_bytes(Encoding.PEM) + self._ca.cert_pem.bytes())

    def _write(self, key_pem: bytes, chain_pem: bytes) -> Path:
        self._count += 1
        directory = self.directory / f"{self._count}"
        directory.mkdir(mode=0o700)
        for name, content in (("key.pem", key_pem), ("chain.pem", chain_pem), ("ca.pem", self._ca.cert_pem.bytes())):
            path = directory / name
            path.touch(mode=0o600)
            path.write_bytes(content)
        return directory
