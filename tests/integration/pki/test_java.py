"""The JVM reads the keystores (key and chain) and trust stores that we write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sluice.core.files import write_secret
from sluice.pki.config import PkiConfig
from sluice.pki.export.formats import Format, export_identity
from sluice.pki.identities.directory import read_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import ALGORITHMS
from sluice.runtime.spark.java import find_java
from tests.hostile import TRUST_DOMAIN, TestPki

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


def keytool(keystore: Path, password_file: Path) -> str:
    """Return the full listing of a keystore by Java's keytool."""
    tool = find_java().executable.resolve().parent / "keytool"
    done = subprocess.run(
        [tool, "-J-Duser.language=en", "-list", "-v", "-keystore", keystore, "-storepass:file", password_file],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"rsa-4096"}))
def test_java_reads_the_keystore_of_an_identity(algorithm: str, tmp_path: Path) -> None:
    pki = TestPki(tmp_path, PkiConfig(trust_domain=TRUST_DOMAIN, key_algorithm=algorithm))
    directory = pki.directory(TASKMANAGER)
    listing = keytool(directory / "identity.p12", directory / "identity.p12.pass")
    assert "Entry type: PrivateKeyEntry" in listing
    assert "Certificate chain length: 2" in listing
    assert f"URIName: {TASKMANAGER}" in listing


def test_java_trusts_what_the_trust_store_holds(tmp_path: Path) -> None:
    material = read_identity(TestPki(tmp_path).directory(TASKMANAGER))[0]
    exported = export_identity(material, Format.PKCS12_TRUST)
    assert exported.password is not None
    write_secret(tmp_path / "trust.p12", exported.data)
    write_secret(tmp_path / "trust.p12.pass", exported.password)
    listing = keytool(tmp_path / "trust.p12", tmp_path / "trust.p12.pass")
    assert listing.count("Entry type: trustedCertEntry") == 1, "without Java's own mark the entry would be ignored"
