"""The other keystores: keytool reads them, extracts the key, and refuses a wrong password and damage."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sluice.core.files import write_secret
from sluice.pki.config import PkiConfig
from sluice.pki.export.formats import (
    Export,
    Format,
    export_anchors,
    export_identity,
)
from sluice.pki.identities.directory import IdentityMaterial, read_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import key_from_pem, same_public_key
from sluice.runtime.spark.java import find_java
from tests.hostile import TRUST_DOMAIN, TestPki

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


def keytool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    tool = find_java().executable.resolve().parent / "keytool"
    return subprocess.run(
        [tool, "-J-Duser.language=en", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def write(folder: Path, exported: Export) -> tuple[Path, Path]:
    assert exported.password is not None
    store, secret = folder / "store", folder / "store.pass"
    write_secret(store, exported.data)
    write_secret(secret, exported.password)
    return store, secret


@pytest.fixture
def material(tmp_path: Path) -> IdentityMaterial:
    return read_identity(TestPki(tmp_path).directory(TASKMANAGER))[0]


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "rsa-3072"])
@pytest.mark.parametrize("kind", [Format.JKS, Format.PKCS12_LEGACY])
def test_java_reads_the_keystore_and_extracts_its_key(kind: Format, algorithm: str, tmp_path: Path) -> None:
    """Moving the entry into a PKCS#12 store decrypts the key; OpenSSL then identifies it."""
    pki = TestPki(tmp_path, PkiConfig(trust_domain=TRUST_DOMAIN, key_algorithm=algorithm))
    identity = read_identity(pki.directory(TASKMANAGER))[0]
    store, secret = write(tmp_path, export_identity(identity, kind))
    listing = keytool("-list", "-v", "-keystore", store, "-storepass:file", secret)
    assert listing.returncode == 0, listing.stdout
    assert "Entry type: PrivateKeyEntry" in listing.stdout
    assert "Certificate chain length: 2" in listing.stdout
    assert f"URIName: {TASKMANAGER}" in listing.stdout
    moved = tmp_path / "moved.p12"
    done = keytool(
        *("-importkeystore", "-srckeystore", store, "-srcstorepass:file", secret),
        *("-destkeystore", moved, "-deststoretype", "PKCS12", "-deststorepass:file", secret, "-noprompt"),
    )
    assert done.returncode == 0, done.stdout
    opened = subprocess.run(
        ["openssl", "pkcs12", "-in", moved, "-passin", f"file:{secret}", "-nodes", "-nocerts"],
        capture_output=True,
        check=True,
    )
    key = key_from_pem(opened.stdout[opened.stdout.index(b"-----BEGIN") :], "moved")
    assert same_public_key(key.public_key(), identity.leaf.public_key())


def test_java_trusts_what_the_jks_trust_store_holds(material: IdentityMaterial, tmp_path: Path) -> None:
    store, secret = write(tmp_path, export_anchors(material.anchors * 2, Format.JKS_TRUST))
    listing = keytool("-list", "-v", "-keystore", store, "-storepass:file", secret)
    assert listing.stdout.count("Entry type: trustedCertEntry") == 2, listing.stdout


@pytest.mark.parametrize("kind", [Format.JKS, Format.PKCS12_LEGACY])
@pytest.mark.parametrize("damage", ["wrong password", "one bit"])
def test_wrong_password_and_damage_are_noticed(
    kind: Format, damage: str, material: IdentityMaterial, tmp_path: Path
) -> None:
    exported = export_identity(material, kind)
    store, secret = write(tmp_path, exported)
    if damage == "wrong password":
        write_secret(secret, b"not the password of this store")
    else:
        data = bytearray(exported.data)
        data[len(data) // 2] ^= 1
        write_secret(store, bytes(data))
    assert keytool("-list", "-keystore", store, "-storepass:file", secret).returncode != 0


def test_keystore_passwords_do_not_appear_in_the_repr(material: IdentityMaterial) -> None:
    for kind in (Format.JKS, Format.PKCS12_LEGACY, Format.JKS_TRUST):
        exported = export_identity(material, kind)
        assert exported.password is not None
        assert exported.password.decode() not in repr(exported)
        assert exported.secret is (kind is not Format.JKS_TRUST)
