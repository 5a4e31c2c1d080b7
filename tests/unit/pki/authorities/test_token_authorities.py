"""Authorities with keys in a PKCS #11 token: what is on disk, and which keys remain after a failure."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.pki.authorities.rotation_phases import Keep, RotationRefused
from sluice.pki.authorities.rotation_store import RotationStore
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.pkcs11.key import TokenKey, TokenKeys
from sluice.pki.pkcs11.sessions import Sessions
from sluice.pki.pkcs11.uri import TokenUri
from sluice.pki.x509.profiles import AuthorityKind
from tests.fake_token import Attribute, FakeLibrary, FakeToken, ObjectClass

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CONFIG = PkiConfig()
ROOT, INTERNAL, EDGE = AuthorityKind.ROOT, AuthorityKind.INTERNAL, AuthorityKind.EDGE


@pytest.fixture
def token() -> FakeToken:
    return FakeToken()


@pytest.fixture
def other() -> FakeToken:
    return FakeToken("other")


@pytest.fixture
def tokens(token: FakeToken, other: FakeToken) -> TokenKeys:
    return TokenKeys(Sessions(lambda: FakeLibrary(token, other), check_module=lambda _: None))


@pytest.fixture
def place(tmp_path: Path) -> TokenUri:
    pin = tmp_path / "pin"
    pin.write_text("1234")
    pin.chmod(0o600)
    return TokenUri(module="/module.so", pin_source=f"file:{pin}", token="hsm")  # noqa: S106  a label


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    return tmp_path / "pki"


@pytest.fixture
def store(pki: Path, tokens: TokenKeys, place: TokenUri) -> AuthorityStore:
    """A store whose three authorities have their keys in the token."""
    store = AuthorityStore(pki, tokens)
    store.ensure(CONFIG, NOW, places=dict.fromkeys(AuthorityKind, place))
    return store


def labels(token: FakeToken) -> list[str]:
    return sorted(each[Attribute.LABEL] for each in token.objects if each[Attribute.CLASS] is ObjectClass.PRIVATE_KEY)


def of(*kinds: str) -> list[str]:
    return sorted(f"sluice sluice.local {kind}" for kind in kinds)


def test_a_key_in_a_token_is_replaced_on_disk_by_its_uri(store: AuthorityStore, token: FakeToken) -> None:
    assert labels(token) == of(*AuthorityKind)
    root = store.certificate(ROOT)
    for kind in AuthorityKind:
        assert sorted(path.name for path in store.directory(kind).iterdir()) == ["cert.pem", "key.uri"]
        assert (store.directory(kind) / "key.uri").stat().st_mode & 0o777 == 0o600
        assert (store.in_token(kind), store.has_key(kind), store.is_encrypted(kind)) == (True, True, False)
        authority = store.load(kind)
        assert isinstance(authority.key, TokenKey)
        authority.certificate.verify_directly_issued_by(root)


def test_the_root_key_can_be_in_a_token_while_other_keys_are_on_disk(
    pki: Path, tokens: TokenKeys, place: TokenUri, token: FakeToken
) -> None:
    store = AuthorityStore(pki, tokens)
    store.ensure(CONFIG, NOW, places={ROOT: place})
    assert labels(token) == of("root")
    assert not isinstance(store.load(INTERNAL).key, TokenKey)
    assert store.ensure(CONFIG, NOW, places={ROOT: place}).made == ()
    with pytest.raises(StoreError, match=r"its key is not in token 'hsm'.*rotate prepare internal --key"):
        store.ensure(CONFIG, NOW, places={INTERNAL: place})
    with pytest.raises(StoreError, match="has no passphrase"):
        store.load(ROOT, b"correct horse battery")
    with pytest.raises(StoreError, match="has no passphrase"):
        store.ensure(CONFIG, NOW, root_passphrase=b"correct horse battery", places={ROOT: place})


@pytest.mark.parametrize("algorithm", ["ed25519", "rsa-3072"])
def test_a_key_algorithm_that_tokens_lack_is_refused(
    algorithm: str, pki: Path, tokens: TokenKeys, place: TokenUri, token: FakeToken
) -> None:
    store = AuthorityStore(pki, tokens)
    with pytest.raises(StoreError, match=f"cannot be {algorithm}"):
        store.ensure(PkiConfig(key_algorithm=algorithm), NOW, places={ROOT: place})
    assert (store.exists(ROOT), token.objects) == (False, [])


@pytest.mark.usefixtures("store")
def test_the_token_key_of_an_authority_that_failed_to_be_created_is_removed(
    pki: Path, tokens: TokenKeys, place: TokenUri, token: FakeToken
) -> None:
    other = AuthorityStore(pki.with_name("other"), tokens)
    token.faulty = True
    with pytest.raises(StoreError, match="does not verify"):
        other.ensure(CONFIG, NOW, places={ROOT: place})
    assert labels(token) == of(*AuthorityKind)
    assert not other.exists(ROOT)


def test_a_wrong_malformed_or_readable_key_uri_is_refused(store: AuthorityStore) -> None:
    path = store.directory(INTERNAL) / "key.uri"
    path.write_bytes((store.directory(EDGE) / "key.uri").read_bytes())
    with pytest.raises(StoreError, match=r"key\.uri is not the key of"):
        store.load(INTERNAL)
    path.write_text("pkcs11:token=hsm")
    with pytest.raises(StoreError, match=r"key\.uri: a PKCS#11 URI needs module-path"):
        store.load(INTERNAL)
    path.write_bytes(b"\xff")
    with pytest.raises(StoreError, match="holds no PKCS#11 URI"):
        store.load(INTERNAL)
    path.chmod(0o644)
    with pytest.raises(StoreError, match="has mode 0644"):
        store.load(INTERNAL)


def test_a_rotation_in_the_same_token_removes_the_old_key(
    store: AuthorityStore, pki: Path, tokens: TokenKeys, token: FakeToken
) -> None:
    rotation = RotationStore(pki, tokens)
    rotation.begin(INTERNAL, CONFIG, NOW)
    assert labels(token) == of(*AuthorityKind, INTERNAL)
    old, new = store.reference(INTERNAL), rotation.others.reference(INTERNAL)
    rotation.switch(Keep.NEW, NOW)
    assert store.reference(INTERNAL) == new
    rotation.end(Keep.NEW)
    token.errors = ["TokenWriteProtected"]
    with pytest.raises(StoreError, match="write-protected"):
        rotation.close()
    rotation.close()
    assert labels(token) == of(*AuthorityKind)
    store.load(INTERNAL)
    with pytest.raises(StoreError, match="there is no key"):
        tokens.load(old)


def test_a_rotation_keeps_the_old_token_key_on_request(
    store: AuthorityStore, pki: Path, tokens: TokenKeys, token: FakeToken
) -> None:
    rotation = RotationStore(pki, tokens)
    rotation.begin(EDGE, CONFIG, NOW)
    rotation.switch(Keep.NEW, NOW)
    rotation.end(Keep.NEW)
    (kept,) = rotation.close(retire=True)
    assert sorted(path.name for path in kept.iterdir()) == ["cert.pem", "key.uri"]
    assert labels(token) == of(*AuthorityKind, EDGE)
    assert store.reference(EDGE) != TokenUri.parse((kept / "key.uri").read_text().strip())


@pytest.mark.usefixtures("store")
def test_a_rotation_creates_keys_in_another_token_and_removes_them_when_aborted(
    pki: Path, tokens: TokenKeys, place: TokenUri, token: FakeToken, other: FakeToken
) -> None:
    there = TokenUri(module=place.module, pin_source=place.pin_source, token=other.label)
    rotation = RotationStore(pki, tokens)
    with pytest.raises(RotationRefused, match="key for the edge authority, which is not replaced"):
        rotation.begin(INTERNAL, CONFIG, NOW, places={EDGE: there})
    rotation.begin(ROOT, CONFIG, NOW, places={INTERNAL: there})
    assert labels(token) == of(*AuthorityKind, ROOT, EDGE)
    assert labels(other) == of(INTERNAL)
    rotation.end(Keep.OLD)
    rotation.close()
    assert labels(token) == of(*AuthorityKind)
    assert labels(other) == []
    rotation.authorities.load(INTERNAL)


@pytest.mark.usefixtures("store")
def test_a_failed_rotation_leaves_no_new_keys_in_the_token(
    pki: Path, tokens: TokenKeys, place: TokenUri, token: FakeToken
) -> None:
    """The second of three keys cannot be created: the first one is removed, too."""
    there = TokenUri(module=place.module, pin_source=place.pin_source, token="nowhere")  # noqa: S106  a label
    rotation = RotationStore(pki, tokens)
    with pytest.raises(StoreError, match="is not there"):
        rotation.begin(ROOT, CONFIG, NOW, places={INTERNAL: there})
    assert labels(token) == of(*AuthorityKind)
    assert rotation.read()[0] is None
    assert not list(pki.glob(".*"))


@pytest.mark.usefixtures("store")
def test_a_passphrase_is_refused_when_rotating_a_root_in_a_token(pki: Path, tokens: TokenKeys) -> None:
    with pytest.raises(RotationRefused, match="has no passphrase"):
        RotationStore(pki, tokens).begin(ROOT, CONFIG, NOW, root_passphrase=b"correct horse battery")
