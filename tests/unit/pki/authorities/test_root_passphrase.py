"""A root key with a passphrase: needed only to create an authority, and never shown."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.x509.encrypted_key import encrypt_key
from sluice.pki.x509.keys import (
    ALGORITHMS,
    generate_key,
    key_from_pem,
    same_public_key,
)
from sluice.pki.x509.passphrase import read_passphrase
from sluice.pki.x509.profiles import ISSUING, AuthorityKind

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CONFIG = PkiConfig()
PASSPHRASE = b"correct horse battery"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Authorities with an encrypted root; tests that change them restore them."""
    folder = tmp_path_factory.mktemp("pki")
    AuthorityStore(folder).ensure(CONFIG, NOW, root_passphrase=PASSPHRASE)
    return folder


def test_only_the_root_key_is_encrypted_and_issuing_needs_no_passphrase(pki: Path) -> None:
    store = AuthorityStore(pki)
    assert b"ENCRYPTED" in (store.directory(AuthorityKind.ROOT) / "key.pem").read_bytes()
    for kind in ISSUING:
        store.load(kind)
    assert store.ensure(CONFIG, NOW).made == ()
    assert store.load(AuthorityKind.ROOT, PASSPHRASE).kind is AuthorityKind.ROOT


@pytest.mark.parametrize(
    ("passphrase", "says"),
    [
        pytest.param(None, "is encrypted.*--root-passphrase-file", id="none"),
        pytest.param(b"incorrect horse battery", "does not open with this passphrase", id="wrong"),
    ],
)
def test_creating_an_authority_without_the_right_passphrase_is_refused(
    passphrase: bytes | None, says: str, pki: Path, tmp_path: Path
) -> None:
    store = AuthorityStore(pki)
    edge = store.directory(AuthorityKind.EDGE)
    edge.rename(tmp_path / "edge")
    with pytest.raises(StoreError, match=says) as refused:
        store.ensure(CONFIG, NOW, root_passphrase=passphrase)
    assert "horse" not in str(refused.value)
    assert not store.exists(AuthorityKind.EDGE)
    (tmp_path / "edge").rename(edge)


def test_an_authority_is_created_with_the_passphrase_of_the_root(pki: Path, tmp_path: Path) -> None:
    store = AuthorityStore(pki)
    store.directory(AuthorityKind.EDGE).rename(tmp_path / "edge")
    assert store.ensure(CONFIG, NOW, root_passphrase=PASSPHRASE).made == (AuthorityKind.EDGE,)
    store.certificate(AuthorityKind.EDGE).verify_directly_issued_by(store.certificate(AuthorityKind.ROOT))


def test_a_passphrase_for_an_unencrypted_root_is_refused(tmp_path: Path) -> None:
    store = AuthorityStore(tmp_path)
    store.ensure(CONFIG, NOW)
    with pytest.raises(StoreError, match="has no passphrase"):
        store.ensure(CONFIG, NOW, root_passphrase=PASSPHRASE)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_encrypted_key_is_read_by_us_and_by_openssl(algorithm: str, tmp_path: Path) -> None:
    key = generate_key(algorithm)
    pem = encrypt_key(key, PASSPHRASE, rounds=4096)
    assert same_public_key(key.public_key(), key_from_pem(pem, "key", PASSPHRASE).public_key())
    file, secret = tmp_path / "key.pem", tmp_path / "secret"
    file.write_bytes(pem)
    secret.write_bytes(PASSPHRASE)
    opened = subprocess.run(
        ["openssl", "pkey", "-in", file, "-passin", f"file:{secret}", "-pubout"], capture_output=True, check=True
    )
    assert opened.stdout.startswith(b"-----BEGIN PUBLIC KEY-----")


def test_a_damaged_encrypted_key_is_a_store_error() -> None:
    pem = encrypt_key(generate_key(), PASSPHRASE, rounds=4096)
    with pytest.raises(StoreError, match="or it is damaged"):
        key_from_pem(pem[:120] + b"AAAA" + pem[124:], "key", PASSPHRASE)


def typed(*answers: str) -> list[str]:
    return list(reversed(answers))


def test_the_passphrase_is_read_from_a_file_or_typed_twice_if_new(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_bytes(PASSPHRASE + b"\r\nand more\n")
    file.chmod(0o600)
    assert read_passphrase(file, lambda _: "", new=True) == PASSPHRASE
    answers = typed("long enough to take", "long enough to take")
    assert read_passphrase(Path("-"), lambda _: answers.pop(), new=True) == b"long enough to take"
    answers = typed("short")
    assert read_passphrase(Path("-"), lambda _: answers.pop(), new=False) == b"short"
    answers = typed("long enough to take", "long enough to fail")
    with pytest.raises(StoreError, match="not the same"):
        read_passphrase(Path("-"), lambda _: answers.pop(), new=True)


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        pytest.param(b"", 0o600, "1 to 1023 bytes", id="empty"),
        pytest.param(b"\nsecond line is long enough", 0o600, "1 to 1023 bytes", id="empty-line"),
        pytest.param(b"x" * 1024, 0o600, "1 to 1023 bytes", id="too-long"),
        pytest.param(b"x" * 4096, 0o600, "larger than", id="much-too-long"),
        pytest.param(b"elevenbytes", 0o600, "too short", id="too-short"),
        pytest.param(PASSPHRASE, 0o640, "others can read", id="readable-by-others"),
    ],
)
def test_unsuitable_passphrase_files_are_refused(content: bytes, mode: int, says: str, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(StoreError, match=says) as refused:
        read_passphrase(file, lambda _: "", new=True)
    assert "horse" not in str(refused.value)
