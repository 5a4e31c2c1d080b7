"""Authorities on disk: created once, never overwritten, and damage is reported."""

from __future__ import annotations

import datetime as dt
import stat
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.x509.keys import generate_key, key_to_pem
from sluice.pki.x509.profiles import AuthorityKind
from tests.unit.core.files.test_files import disk_full_beyond

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CONFIG = PkiConfig()
KINDS = tuple(AuthorityKind)


@pytest.fixture
def store(tmp_path: Path) -> AuthorityStore:
    made = AuthorityStore(tmp_path / "pki")
    made.ensure(CONFIG, NOW)
    return made


def content(pki: Path) -> dict[str, bytes]:
    return {str(path.relative_to(pki)): path.read_bytes() for path in sorted(pki.rglob("*")) if path.is_file()}


def test_authorities_are_created_once_and_kept(tmp_path: Path) -> None:
    store = AuthorityStore(tmp_path / "pki")
    first = store.ensure(CONFIG, NOW)
    before = content(tmp_path)
    second = store.ensure(PkiConfig(key_algorithm="ed25519"), NOW + dt.timedelta(days=30))
    assert (first.made, first.kept) == (KINDS, ())
    assert (second.made, second.kept) == ((), KINDS)
    assert content(tmp_path) == before
    assert sorted(before) == sorted(f"pki/authorities/{kind}/{name}.pem" for kind in KINDS for name in ("cert", "key"))


def test_authority_keys_are_readable_only_by_their_owner(store: AuthorityStore) -> None:
    for kind in KINDS:
        directory = store.directory(kind)
        assert stat.S_IMODE((directory / "key.pem").stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_missing_intermediate_authority_is_created_again_by_the_same_root(
    store: AuthorityStore, tmp_path: Path
) -> None:
    root = store.certificate(AuthorityKind.ROOT)
    (store.directory(AuthorityKind.EDGE)).rename(tmp_path / "away")
    assert store.ensure(CONFIG, NOW).made == (AuthorityKind.EDGE,)
    store.certificate(AuthorityKind.EDGE).verify_directly_issued_by(root)


def test_root_key_may_be_kept_elsewhere(store: AuthorityStore, tmp_path: Path) -> None:
    """Leaves are issued without the root key; only new authorities need it, and the error says so."""
    (store.directory(AuthorityKind.ROOT) / "key.pem").rename(tmp_path / "safe.pem")
    assert store.ensure(CONFIG, NOW).made == ()
    store.load(AuthorityKind.INTERNAL)
    store.directory(AuthorityKind.EDGE).rename(tmp_path / "away")
    with pytest.raises(StoreError, match="key of the root authority is not in"):
        store.ensure(CONFIG, NOW)


def test_a_missing_root_is_not_replaced_by_a_new_one(store: AuthorityStore, tmp_path: Path) -> None:
    store.directory(AuthorityKind.ROOT).rename(tmp_path / "away")
    with pytest.raises(StoreError, match="restore"):
        store.ensure(CONFIG, NOW)
    assert not store.exists(AuthorityKind.ROOT)


def test_a_store_of_another_trust_domain_is_refused_and_left_unchanged(store: AuthorityStore, tmp_path: Path) -> None:
    before = content(tmp_path)
    with pytest.raises(StoreError, match=r"sluice\.local"):
        store.ensure(PkiConfig(trust_domain="other.local"), NOW)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        pytest.param("cert.pem", b"", "damaged", id="empty-certificate"),
        pytest.param("cert.pem", b"-----BEGIN CERTIFICATE-----\nMII", "damaged", id="cut-certificate"),
        pytest.param("cert.pem", None, "cannot read", id="no-certificate"),
        pytest.param("key.pem", b"garbage", "not a readable PEM private key", id="damaged-key"),
        pytest.param("key.pem", key_to_pem(generate_key()), "is not the key of", id="another-key"),
        pytest.param("key.pem", None, "is not in", id="no-key"),
    ],
)
def test_a_damaged_authority_is_refused_with_its_reason(
    name: str, data: bytes | None, reason: str, store: AuthorityStore
) -> None:
    path = store.directory(AuthorityKind.INTERNAL) / name
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    with pytest.raises(StoreError, match=reason) as caught:
        store.load(AuthorityKind.INTERNAL)
    assert caught.value.remedy or data is None


def test_a_certificate_file_with_two_certificates_is_refused(store: AuthorityStore) -> None:
    both = to_pem(store.certificate(AuthorityKind.INTERNAL), store.certificate(AuthorityKind.EDGE))
    store.certificate_file(AuthorityKind.INTERNAL).write_bytes(both)
    with pytest.raises(StoreError, match="2 certificates"):
        store.load(AuthorityKind.INTERNAL)


def test_key_that_others_can_read_is_not_used(store: AuthorityStore) -> None:
    (store.directory(AuthorityKind.INTERNAL) / "key.pem").chmod(0o644)
    with pytest.raises(StoreError, match="others can read"):
        store.load(AuthorityKind.INTERNAL)


def test_loading_before_init_suggests_pki_init(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="sluice pki init"):
        AuthorityStore(tmp_path).load(AuthorityKind.INTERNAL)


def test_full_disk_leaves_no_half_authority(tmp_path: Path) -> None:
    store = AuthorityStore(tmp_path / "pki")
    with disk_full_beyond(300), pytest.raises(StoreError, match="cannot write"):
        store.ensure(CONFIG, NOW)
    assert list((tmp_path / "pki" / "authorities").iterdir()) == []
    assert store.ensure(CONFIG, NOW).made == KINDS


def test_an_error_about_a_damaged_key_does_not_reveal_it(store: AuthorityStore) -> None:
    secret = "MC4CAQAwBQYDK2VwBCIEIA"  # noqa: S105  the beginning of any PKCS#8 key
    path = store.directory(AuthorityKind.INTERNAL) / "key.pem"
    path.write_text(f"-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n")
    with pytest.raises(StoreError) as caught:
        store.load(AuthorityKind.INTERNAL)
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None
