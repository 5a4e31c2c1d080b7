"""Single keys in SoftHSM: their protection, and what happens when token, PIN or key have changed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.core.errors import StoreError
from sluice.pki.pkcs11.key import TOKEN_KEYS, TokenKey, TokenKeys
from sluice.pki.pkcs11.sessions import Session, Sessions
from sluice.pki.pkcs11.uri import TokenUri
from sluice.pki.x509.keys import key_to_pem
from tests.pkcs11.conftest import PIN, Token

DATA = b"to be signed"
ECDSA = ec.ECDSA(hashes.SHA256())


@pytest.fixture
def place(token: Token) -> TokenUri:
    return TokenUri.parse(token.uri)


@pytest.fixture
def key(place: TokenUri) -> TokenKey:
    return TOKEN_KEYS.generate(place, "ecdsa-p256", "a key")


def check(key: TokenKey) -> None:
    key.public_key().verify(key.sign(DATA, ECDSA), DATA, ECDSA)


@pytest.mark.parametrize(("algorithm", "bits"), [("ecdsa-p256", 256), ("ecdsa-p384", 384)])
def test_key_is_generated_in_the_token_and_cannot_be_exported(algorithm: str, bits: int, place: TokenUri) -> None:
    key = TOKEN_KEYS.generate(place, algorithm, "a key")
    assert key.key_size == bits

    def attributes(library: Any, session: Session) -> list[Any]:
        private, _ = session.found[key.uri]
        names = library.Attribute
        wanted = (names.SENSITIVE, names.ALWAYS_SENSITIVE, names.EXTRACTABLE, names.NEVER_EXTRACTABLE, names.LOCAL)
        with pytest.raises(library.AttributeSensitive):
            private[names.VALUE]
        return [private[each] for each in (*wanted, names.PRIVATE, names.TOKEN)]

    assert TOKEN_KEYS._sessions.run(key.uri, attributes) == [True, True, False, True, True, True, True]
    for algorithm_of_hash in (hashes.SHA256(), hashes.SHA384()):
        ecdsa = ec.ECDSA(algorithm_of_hash)
        key.public_key().verify(key.sign(DATA, ecdsa), DATA, ecdsa)
    with pytest.raises(StoreError, match="does not leave token"):
        key_to_pem(key)
    again = TOKEN_KEYS.load(TokenUri.parse(str(key.uri)))
    assert again.public_key() == key.public_key()


@pytest.mark.parametrize("algorithm", ["ed25519", "rsa-3072"])
def test_algorithms_other_than_ecdsa_p256_and_p384_are_refused(algorithm: str, place: TokenUri, token: Token) -> None:
    with pytest.raises(StoreError, match=r"cannot be .*ecdsa-p256 or ecdsa-p384"):
        TOKEN_KEYS.generate(place, algorithm, "a key")
    assert token.objects() == []


def test_wrong_pin_is_tried_only_once_until_it_is_corrected(key: TokenKey, token: Token) -> None:
    attempts = []

    class Counting(Sessions):
        def _open_session(self, library: Any, token: Any, pin: str) -> Any:
            attempts.append(pin)
            return super()._open_session(library, token, pin)

    TOKEN_KEYS._sessions._reset(key.uri.module)  # logs this process out: SoftHSM asks for no PIN otherwise
    keys = TokenKeys(Counting())
    token.pin_file.write_text("11111111\n")
    for _ in range(3):
        with pytest.raises(StoreError, match="does not take the PIN") as refused:
            keys.load(key.uri)
        assert "11111111" not in str(refused.value)
    assert attempts == ["11111111"]
    token.pin_file.write_text(PIN)
    keys.load(key.uri).sign(DATA, ECDSA)
    assert attempts == ["11111111", PIN]


def test_key_signs_again_after_its_token_was_removed_and_returned(key: TokenKey, token: Token) -> None:
    check(key)
    away = token.hsm.tokens.with_name("away")
    token.hsm.tokens.rename(away)
    try:
        token.hsm.tokens.mkdir()
        for _ in range(2):
            with pytest.raises(StoreError, match=f"token '{token.label}' is not there"):
                key.sign(DATA, ECDSA)
    finally:
        token.hsm.tokens.rmdir()
        away.rename(token.hsm.tokens)
    check(key)


def test_lost_session_is_opened_again(key: TokenKey) -> None:
    check(key)
    session = TOKEN_KEYS._sessions._open[key.uri.place]
    session.handle.close()
    check(key)


def test_destroyed_key_can_be_neither_loaded_nor_used(key: TokenKey, place: TokenUri, token: Token) -> None:
    TOKEN_KEYS.destroy(key.uri)
    TOKEN_KEYS.destroy(key.uri)
    assert token.objects() == []
    with pytest.raises(StoreError, match="there is no key 'a key' with id"):
        TOKEN_KEYS.load(key.uri)
    with pytest.raises(StoreError, match="there is no key 'a key' with id"):
        key.sign(DATA, ECDSA)
    with pytest.raises(StoreError, match="names a token and no key"):
        TOKEN_KEYS.load(place)


def test_key_of_another_type_or_that_can_be_copied_is_refused(place: TokenUri) -> None:
    rsa, loose = place.key("rsa", b"\x01" * 16), place.key("loose", b"\x02" * 16)

    def make(library: Any, session: Session) -> None:
        attribute = library.Attribute
        session.handle.generate_keypair(library.KeyType.RSA, 2048, id=rsa.id, label=rsa.object, store=True)
        domain = session.handle.create_domain_parameters(
            library.KeyType.EC, {attribute.EC_PARAMS: bytes.fromhex("06082a8648ce3d030107")}, local=True
        )
        loosely = {attribute.SENSITIVE: False, attribute.EXTRACTABLE: True}
        domain.generate_keypair(id=loose.id, label=loose.object, store=True, private_template=loosely)

    TOKEN_KEYS._sessions.run(place, make)
    with pytest.raises(StoreError, match=r"of another type.*must be ecdsa-p256 or ecdsa-p384"):
        TOKEN_KEYS.load(rsa)
    with pytest.raises(StoreError, match="can be copied out of"):
        TOKEN_KEYS.load(loose)


def test_error_states_what_is_wrong_with_the_module_or_the_token(place: TokenUri, tmp_path: Path) -> None:
    def refusal(**changed: str) -> str:
        attributes = {name: getattr(place, name) for name in ("module", "pin_source", "token")} | changed
        with pytest.raises(StoreError) as refused:
            TOKEN_KEYS.load(TokenUri(**attributes).key("x", b"x"))
        return str(refused.value)

    assert "there is no PKCS#11 module /no/such.so" in refusal(module="/no/such.so")
    text = tmp_path / "text.so"
    text.write_text("no library")
    text.chmod(0o600)
    assert "is not a PKCS#11 module that runs here" in refusal(module=str(text))
    text.chmod(0o666)
    assert "others can change" in refusal(module=str(text))
    assert "token 'nobody' is not there" in refusal(token="nobody")  # noqa: S106  a label
    assert "cannot read /no/pin" in refusal(pin_source="file:/no/pin")


def test_child_of_fork_and_its_parent_both_sign(key: TokenKey) -> None:
    check(key)
    child = os.fork()
    if child == 0:
        try:
            check(key)
        except BaseException:  # noqa: BLE001  a child must not go on with the tests
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    check(key)


def test_many_threads_sign_at_once(key: TokenKey) -> None:
    failed: list[BaseException] = []

    def sign() -> None:
        try:
            for _ in range(25):
                check(key)
        except BaseException as error:  # noqa: BLE001  told below
            failed.append(error)

    threads = [threading.Thread(target=sign) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
