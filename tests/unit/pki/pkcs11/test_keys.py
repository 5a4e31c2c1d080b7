"""Keys in a fake token: PINs, lost sessions, forks, and faults of a token or a key."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from sluice.core.errors import StoreError
from sluice.pki.pkcs11.key import TokenKey, TokenKeys
from sluice.pki.pkcs11.pin import read_pin
from sluice.pki.pkcs11.sessions import Sessions, check_module_file
from sluice.pki.pkcs11.uri import TokenUri
from tests.fake_token import Attribute, FakeLibrary, FakeToken, KeyType

DATA = b"to be signed"
ECDSA = ec.ECDSA(hashes.SHA256())


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def token() -> FakeToken:
    return FakeToken()


@pytest.fixture
def library(token: FakeToken) -> FakeLibrary:
    return FakeLibrary(token)


@pytest.fixture
def keys(library: FakeLibrary) -> TokenKeys:
    return keys_of(library)


def keys_of(library: FakeLibrary) -> TokenKeys:
    return TokenKeys(Sessions(lambda: library, check_module=lambda _: None))


@pytest.fixture
def place(tmp_path: Path) -> TokenUri:
    write(tmp_path / "pin", "1234\nnot this\n")
    return TokenUri(module="/module.so", pin_source=f"file:{tmp_path / 'pin'}", token="hsm")  # noqa: S106  a label


@pytest.fixture
def key(keys: TokenKeys, place: TokenUri) -> TokenKey:
    return keys.generate(place, "ecdsa-p256", "a key")


def check(key: TokenKey) -> None:
    key.public_key().verify(key.sign(DATA, ECDSA), DATA, ECDSA)


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "ecdsa-p384"])
def test_signatures_of_the_token_verify(algorithm: str, keys: TokenKeys, place: TokenUri, token: FakeToken) -> None:
    key = keys.generate(place, algorithm, "a key")
    private = token.objects[0]
    assert (private[Attribute.PRIVATE], private[Attribute.SENSITIVE], private[Attribute.EXTRACTABLE]) == (1, 1, 0)
    ecdsa = ec.ECDSA(hashes.SHA384() if key.key_size == 384 else hashes.SHA256())
    key.public_key().verify(key.sign(DATA, ecdsa), DATA, ecdsa)
    assert keys.load(key.uri).public_key() == key.public_key()
    assert copy.copy(key) is copy.deepcopy(key) is key
    assert token.pins_tried == ["1234"]


def test_a_token_key_only_signs_and_cannot_be_exported(key: TokenKey) -> None:
    with pytest.raises(UnsupportedAlgorithm):
        key.exchange(ec.ECDH(), key.public_key())
    with pytest.raises(UnsupportedAlgorithm):
        key.sign(DATA, ec.ECDSA(Prehashed(hashes.SHA256())))
    with pytest.raises(StoreError, match="does not leave token 'hsm'"):
        key.private_numbers()
    assert repr(key) == "TokenKey('a key' in token 'hsm')"


def test_a_signature_that_does_not_verify_is_not_returned(key: TokenKey, token: FakeToken) -> None:
    token.faulty = True
    with pytest.raises(StoreError, match="does not verify"):
        key.sign(DATA, ECDSA)


def test_a_wrong_pin_is_tried_only_once_until_it_changes(
    keys: TokenKeys, place: TokenUri, token: FakeToken, tmp_path: Path
) -> None:
    write(tmp_path / "pin", "9999")
    for _ in range(5):
        with pytest.raises(StoreError, match=r"does not take the PIN in file:") as refused:
            keys.generate(place, "ecdsa-p256", "a key")
        assert "9999" not in str(refused.value)
    assert token.pins_tried == ["9999"]
    write(tmp_path / "pin", "1234")
    check(keys.generate(place, "ecdsa-p256", "a key"))


def test_a_pin_that_becomes_wrong_is_tried_only_once(key: TokenKey, token: FakeToken) -> None:
    token.pin = "changed"
    for _ in range(3):
        token.errors = ["SessionHandleInvalid"]
        with pytest.raises(StoreError, match="does not take the PIN"):
            key.sign(DATA, ECDSA)
        token.errors = []
    assert token.pins_tried == ["1234", "1234"]


@pytest.mark.parametrize(("flags", "why"), [(0x00020000, "locks itself at the next"), (0x00040000, "has locked")])
def test_no_pin_is_tried_on_a_token_that_is_about_to_lock_itself(
    flags: int, why: str, keys: TokenKeys, place: TokenUri, token: FakeToken
) -> None:
    token.flags = flags
    with pytest.raises(StoreError, match=why):
        keys.generate(place, "ecdsa-p256", "a key")
    assert token.pins_tried == []


@pytest.mark.parametrize("name", ["SessionHandleInvalid", "UserNotLoggedIn", "DeviceError", "GeneralError"])
def test_lost_session_is_opened_again(name: str, key: TokenKey, token: FakeToken, library: FakeLibrary) -> None:
    token.errors = [name]
    before = library.initialized
    check(key)
    assert (library.initialized, token.pins_tried) == (before + 1, ["1234", "1234"])


def test_a_permanent_error_is_reported_and_retried_later(key: TokenKey, token: FakeToken) -> None:
    token.errors = ["SessionHandleInvalid", "", "DeviceRemoved"]
    with pytest.raises(StoreError, match=r"token 'hsm' was removed \(plug it in"):
        key.sign(DATA, ECDSA)
    check(key)


def test_a_removed_token_is_used_again_once_it_is_back(key: TokenKey, library: FakeLibrary, token: FakeToken) -> None:
    library.tokens = []
    token.errors = ["DeviceRemoved"]
    for _ in range(2):
        with pytest.raises(StoreError, match=r"token 'hsm' is not there, says /module\.so"):
            key.sign(DATA, ECDSA)
    library.tokens = [token]
    check(key)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("MechanismInvalid", "does not sign with ECDSA"),
        ("TokenWriteProtected", "write-protected"),
        ("DeviceMemory", "is full"),
        ("FunctionFailed", "refused: FunctionFailed"),
    ],
)
def test_the_reason_why_a_token_cannot_generate_a_key_is_reported(
    name: str, why: str, keys: TokenKeys, place: TokenUri, token: FakeToken
) -> None:
    token.errors = ["", name]
    with pytest.raises(StoreError, match=why):
        keys.generate(place, "ecdsa-p256", "a key")


def test_a_generated_key_that_could_be_copied_out_is_removed_and_refused(
    keys: TokenKeys, place: TokenUri, token: FakeToken
) -> None:
    for overrides in ({Attribute.EXTRACTABLE: True}, {Attribute.SENSITIVE: False}):
        token.attribute_overrides = overrides
        with pytest.raises(StoreError, match="can be copied out of"):
            keys.generate(place, "ecdsa-p256", "a key")
        assert token.objects == []


def test_a_key_that_does_not_fit_its_reference_is_refused(
    keys: TokenKeys, place: TokenUri, token: FakeToken, key: TokenKey
) -> None:
    with pytest.raises(StoreError, match="names a token and no key"):
        keys.load(place)
    with pytest.raises(StoreError, match="there is no key 'other' with id 01"):
        keys.load(place.key("other", b"\x01"))
    with pytest.raises(StoreError, match="leave out `object` and `id`"):
        keys.generate(key.uri, "ecdsa-p256", "a key")
    token.attribute_overrides = {Attribute.KEY_TYPE: KeyType.RSA}
    with pytest.raises(StoreError, match="is of another type"):
        keys.generate(place, "ecdsa-p256", "b")
    token.put(ec.generate_private_key(ec.SECP256R1()), key.uri.id, "a key", b"", {})
    with pytest.raises(StoreError, match="has 2 keys"):
        keys_of(FakeLibrary(token)).load(key.uri)


def test_one_of_several_tokens_with_the_same_label_is_chosen_by_its_serial(place: TokenUri) -> None:
    library = FakeLibrary(FakeToken("other"), FakeToken(serial=b"0001 \0"), FakeToken(serial=b"0002"))
    with pytest.raises(StoreError, match=r"2 tokens match.*by its serial"):
        keys_of(library).generate(place, "ecdsa-p256", "a key")
    keys_of(library).generate(dataclasses.replace(place, serial="0001"), "ecdsa-p256", "a key")
    assert [len(token.objects) for token in library.tokens] == [0, 2, 0]


def test_two_references_to_one_token_share_its_login(key: TokenKey, keys: TokenKeys, token: FakeToken) -> None:
    token.logged_in = True
    check(keys.load(dataclasses.replace(key.uri, serial="0001")))
    assert token.pins_tried == ["1234"]


def test_a_pkcs11_module_that_does_not_load_is_reported(keys: TokenKeys, place: TokenUri) -> None:
    with pytest.raises(StoreError, match=r"/other\.so is not a PKCS#11 module that runs here: cannot load"):
        keys.generate(dataclasses.replace(place, module="/other.so"), "ecdsa-p256", "a key")


def test_a_forked_child_opens_a_session_of_its_own(
    key: TokenKey, keys: TokenKeys, token: FakeToken, library: FakeLibrary
) -> None:
    """The child has no session of its parent, closes none, and initializes the module itself."""
    before = library.initialized
    keys._sessions._forget()  # what runs in the child first
    check(key)
    check(key)
    assert (library.initialized, token.pins_tried, token.closed) == (before + 1, ["1234", "1234"], 0)


def test_module_file_that_others_can_change_is_not_loaded(tmp_path: Path) -> None:
    module = tmp_path / "module.so"
    with pytest.raises(StoreError, match="there is no PKCS#11 module"):
        check_module_file(str(module))
    write(module, "", 0o755)
    check_module_file(str(module))
    for mode in (0o775, 0o757):
        module.chmod(mode)
        with pytest.raises(StoreError, match="others can change"):
            check_module_file(str(module))
    with pytest.raises(StoreError, match="is not a file"):
        check_module_file(str(tmp_path))


def test_pin_is_read_from_private_files_and_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    pin = tmp_path / "pin"
    write(pin, "1234\r\n")
    assert read_pin(f"file:{pin}") == "1234"
    pin.chmod(0o640)
    with pytest.raises(StoreError, match="has mode 0640"):
        read_pin(f"file:{pin}")
    with pytest.raises(StoreError, match=r"no credentials of systemd.*LoadCredential=pin"):
        read_pin("credential:pin")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_pin("credential:pin") == "1234"  # an access list shows like this
    write(pin, "\n")
    with pytest.raises(StoreError, match="there is no PIN"):
        read_pin(f"file:{pin}")
    pin.write_bytes(b"\xff\n")
    with pytest.raises(StoreError, match="not UTF-8"):
        read_pin(f"file:{pin}")
