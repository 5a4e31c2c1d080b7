"""An audit log whose key is in a token that can fail: what must be signed counts only once signed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.gateway.audit_log import keys
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.keys import SIGNING_KEY, SIGNING_REFERENCE, KeyInToken, key_place
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits
from sluice.gateway.audit_log.log_files import log_files
from sluice.gateway.audit_log.verification import verify_log
from sluice.gateway.errors import AuditLogError
from sluice.pki.pkcs11.key import TokenKeys
from sluice.pki.pkcs11.sessions import Sessions
from sluice.pki.pkcs11.uri import TokenUri
from tests.fake_token import Attribute, FakeLibrary, FakeToken, ObjectClass

ALWAYS = AuditLogLimits(checkpoint_records=1)


@pytest.fixture
def token() -> FakeToken:
    return FakeToken()


@pytest.fixture
def place(tmp_path: Path) -> TokenUri:
    pin = tmp_path / "pin"
    pin.write_text("1234\n")
    pin.chmod(0o600)
    return TokenUri(module="/module.so", pin_source=f"file:{pin}", token="hsm")  # noqa: S106  a label


@pytest.fixture
def in_token(token: FakeToken, place: TokenUri) -> KeyInToken:
    tokens = TokenKeys(Sessions(lambda: FakeLibrary(token), check_module=lambda _: None))
    return KeyInToken(place, "audit log", tokens)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "current.jsonl"


def private_keys(token: FakeToken) -> list[str]:
    return [each[Attribute.LABEL] for each in token.objects if each[Attribute.CLASS] is ObjectClass.PRIVATE_KEY]


def test_log_is_created_and_continued_with_a_key_in_the_token(
    path: Path, in_token: KeyInToken, token: FakeToken, place: TokenUri
) -> None:
    for number in range(2):
        with contextlib.closing(AuditLog(path, key_in=in_token)) as log:
            log.event("test.done", "local:ada", {"number": number})
    proved = verify_log(path.parent)
    assert (proved.state.count, proved.unsigned) == (5, 0)
    assert private_keys(token) == ["audit log"]
    assert not (path.parent / SIGNING_KEY).exists()
    reference = path.parent / SIGNING_REFERENCE
    assert reference.stat().st_mode & 0o777 == 0o600
    assert "1234" not in reference.read_text()
    assert key_place(path.parent) == place
    with log_files(path.parent) as files:
        assert reference in [each.path for each in files]


def test_record_that_the_token_does_not_sign_is_not_written(path: Path, in_token: KeyInToken, token: FakeToken) -> None:
    with contextlib.closing(AuditLog(path, key_in=in_token, limits=ALWAYS)) as log:
        log.append(AuditRecord(event="decision", path="/before"))
        before = path.read_bytes()
        token.errors = ["DeviceRemoved"] * 9
        with pytest.raises(AuditLogError, match="cannot be signed: token 'hsm' was removed"):
            log.append(AuditRecord(event="decision", path="/meanwhile"))
        assert path.read_bytes() == before
        token.errors = []
        log.append(AuditRecord(event="decision", path="/after"))
    assert b"/meanwhile" not in path.read_bytes()
    assert verify_log(path.parent).unsigned == 0


def test_wrong_signature_is_not_written(path: Path, in_token: KeyInToken, token: FakeToken) -> None:
    with contextlib.closing(AuditLog(path, key_in=in_token)) as log:
        token.faulty = True
        with pytest.raises(AuditLogError, match="does not verify"):
            log.event("test.done", "local:ada")
        token.faulty = False
    assert b"test.done" not in path.read_bytes()


def test_log_whose_key_is_lost_is_not_continued(path: Path, in_token: KeyInToken, token: FakeToken) -> None:
    AuditLog(path, key_in=in_token).close()
    token.objects.clear()
    again = KeyInToken(in_token.place, "another", TokenKeys(Sessions(lambda: FakeLibrary(token), lambda _: None)))
    with pytest.raises(AuditLogError, match="there is no key 'audit log'"):
        AuditLog(path, key_in=again)
    assert private_keys(token) == []


def test_key_whose_reference_cannot_be_written_is_removed(
    path: Path, in_token: KeyInToken, token: FakeToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(target: Path, data: bytes) -> None:
        raise StoreError(f"cannot write {target} ({len(data)} bytes): No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keys, "write_secret", full)
        with pytest.raises(AuditLogError, match="No space left"):
            AuditLog(path, key_in=in_token)
    assert private_keys(token) == []
    AuditLog(path, key_in=in_token).close()
    assert private_keys(token) == ["audit log"]


def test_log_created_with_a_key_file_keeps_that_key(path: Path, in_token: KeyInToken, token: FakeToken) -> None:
    AuditLog(path).close()
    with contextlib.closing(AuditLog(path, key_in=in_token)) as log:
        log.event("test.done", "local:ada")
    assert private_keys(token) == []
    assert key_place(path.parent) is None
    assert verify_log(path.parent).unsigned == 0
