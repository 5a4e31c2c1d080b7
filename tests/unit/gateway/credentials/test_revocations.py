"""The set of revoked ids: durable, bounded, seen by readers at once, and never quietly ignored."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import get_args

import pytest

import sluice.gateway.credentials.revocations as module
from sluice.gateway.credentials.api_tokens import TokenBook
from sluice.gateway.credentials.revocations import (
    FOREVER,
    KINDS,
    RevocationKey,
    Revocations,
    RevocationSet,
    decode,
)
from sluice.gateway.credentials.sessions import SessionBook
from sluice.gateway.errors import RevocationError
from sluice.pki.assertions.principal import CertificateId, Credential, CredentialKind, Jti, SessionId, TokenId

NOW = 1_800_000_000.0


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def revocations(tmp_path: Path, clock: Clock) -> Revocations:
    return Revocations(tmp_path / "revocations.jsonl", clock)


def test_another_reader_sees_a_revocation_at_its_next_read(tmp_path: Path, clock: Clock) -> None:
    writer, reader = (Revocations(tmp_path / "r.jsonl", clock) for _ in range(2))
    assert not reader.is_revoked(("token", TokenId("abc")))
    writer.revoke(("token", TokenId("abc")), by="ada")
    assert reader.is_revoked(("token", TokenId("abc")))
    assert not reader.is_revoked(("session", SessionId("abc")))
    assert stat.S_IMODE((tmp_path / "r.jsonl").stat().st_mode) == 0o600


def test_a_revocation_expires_with_its_credential(revocations: Revocations, clock: Clock) -> None:
    revocations.revoke(("pass", Jti("abc")), until=NOW + 300)
    assert [each.id for each in revocations.current().unexpired(NOW)] == ["abc"]
    clock.now += 300
    assert not revocations.is_revoked(("pass", Jti("abc")))
    assert revocations.current().unexpired(clock.now) == ()


def test_a_revoked_user_can_be_restored(revocations: Revocations) -> None:
    revocations.revoke(("user", "ada"))
    assert revocations.is_revoked(("user", "ada"))
    revocations.restore(("user", "ada"))
    assert not revocations.is_revoked(("user", "ada"))


KEYS: tuple[RevocationKey, ...] = (
    ("token", TokenId("x1")),
    ("pass", Jti("x1")),
    ("session", SessionId("x1")),
    ("user", "x1"),
    ("certificate", CertificateId("x1")),
)


def test_type_checkers_refuse_the_id_of_one_kind_for_another(revocations: Revocations) -> None:
    """Unused ignores are errors for mypy, so these lines pass its check only as long as it refuses them."""
    assert not revocations.is_revoked(("token", SessionId("x1")))  # type: ignore[arg-type]
    assert not revocations.is_revoked(("session", TokenId("x1")))  # type: ignore[arg-type]
    assert not revocations.is_revoked(("token", "x1"))  # type: ignore[arg-type]
    assert Credential.of_token(SessionId("x1")) != Credential.of_session(TokenId("x1"))  # type: ignore[arg-type]
    assert SessionBook().get(TokenId("x1")) is None  # type: ignore[arg-type]
    assert TokenBook().get(SessionId("x1")) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("key", KEYS, ids=KINDS)
def test_a_revocation_refuses_only_ids_of_its_own_kind(revocations: Revocations, key: RevocationKey) -> None:
    kind, _ = key
    revocations.revoke(key)
    current = revocations.current()
    other = Credential("token", "x2")
    assert (current.refuses(name="x1", credential=other, now=NOW) is not None) is (kind == "user")
    for shown in get_args(CredentialKind):
        assert (current.refuses(name="a", credential=Credential(shown, "x1"), now=NOW) is not None) is (kind == shown)
    assert (current.refuses(name="a", credential=other, jti="x1", now=NOW) is not None) is (kind == "pass")
    assert current.refuses(name="", credential=Credential("token", ""), now=NOW) is None


@pytest.mark.parametrize("identifier", ["", "a b", "a\nb", '"', "-a", "a" * 129, "ä"])
def test_a_malformed_id_cannot_be_revoked(revocations: Revocations, identifier: str) -> None:
    with pytest.raises(RevocationError, match="cannot be the id"):
        revocations.revoke(("token", TokenId(identifier)))


def test_a_line_truncated_by_a_crash_is_ignored_and_the_next_one_counts(
    tmp_path: Path, revocations: Revocations
) -> None:
    revocations.revoke(("token", TokenId("one")))
    path = tmp_path / "revocations.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"token","id":"tw')
    assert not revocations.is_revoked(("token", TokenId("two")))
    revocations.revoke(("token", TokenId("three")))
    assert path.read_bytes().count(b"\n") == 2
    assert set(revocations.current().entries) == {("token", "one"), ("token", "three")}


@pytest.mark.parametrize("line", [b"garbage\n", b'{"kind":"token"}\n', b'{"kind":"x","id":"a","until":1,"at":1}\n'])
def test_a_damaged_revocation_file_is_an_error(tmp_path: Path, revocations: Revocations, line: bytes) -> None:
    revocations.revoke(("token", TokenId("one")))
    path = tmp_path / "revocations.jsonl"
    path.write_bytes(line + path.read_bytes())
    for _ in range(2):
        with pytest.raises(RevocationError, match="damaged"):
            revocations.is_revoked(("token", TokenId("two")))
    with pytest.raises(RevocationError, match="damaged"):
        revocations.revoke(("token", TokenId("two")))


def test_the_number_of_revocations_is_bounded(
    revocations: Revocations, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REVOCATIONS", 3)
    for number in range(3):
        revocations.revoke(("pass", Jti(f"p{number}")), until=NOW + 10)
    with pytest.raises(RevocationError, match="3 ids"):
        revocations.revoke(("pass", Jti("p3")), until=NOW + 10)
    revocations.restore(("pass", Jti("p0")))
    revocations.revoke(("pass", Jti("p3")), until=NOW + 10)
    clock.now += 10
    revocations.revoke(("pass", Jti("p4")), until=clock.now + 10)


def test_a_large_revocation_file_is_compacted_to_unexpired_entries(
    tmp_path: Path, revocations: Revocations, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_ABOVE_BYTES", 500)
    for number in range(10):
        revocations.revoke(("pass", Jti(f"p{number}")), until=NOW + 1)
    revocations.revoke(("user", "eve"), until=FOREVER)
    clock.now += 5
    revocations.revoke(("token", TokenId("t")), until=FOREVER)
    assert (tmp_path / "revocations.jsonl").read_bytes().count(b"\n") == 2
    assert revocations.is_revoked(("user", "eve"))
    assert revocations.is_revoked(("token", TokenId("t")))


def test_the_last_of_several_lines_about_one_id_counts() -> None:
    lines = b"".join(b'{"kind":"user","id":"a","until":%d,"at":1}\n' % until for until in (9, 3, 7))
    assert decode(lines).is_revoked(("user", "a"), now=6)
    assert not decode(lines).is_revoked(("user", "a"), now=8)
    assert decode(b"") == RevocationSet()


async def test_changes_yields_the_set_after_a_revocation(revocations: Revocations) -> None:
    changes = revocations.changes(interval=0.01)
    assert (await anext(changes)).unexpired(NOW) == ()
    following = asyncio.ensure_future(anext(changes))
    revocations.revoke(("session", SessionId("s1")))
    changed = await asyncio.wait_for(following, 10)
    assert changed.is_revoked(("session", SessionId("s1")), now=NOW)
    await changes.aclose()  # type: ignore[attr-defined]


def test_merging_a_copy_adds_revocations_and_removes_none(
    tmp_path: Path, revocations: Revocations, clock: Clock
) -> None:
    copy = Revocations(tmp_path / "copy.jsonl", clock)
    one: RevocationKey = ("token", TokenId("1" * 12))
    two: RevocationKey = ("token", TokenId("2" * 12))
    three: RevocationKey = ("token", TokenId("3" * 12))
    revocations.revoke(one, until=NOW + 100)
    revocations.revoke(two, until=NOW + 100)
    copy.restore(one)
    copy.revoke(two, until=NOW + 500)
    copy.revoke(three, until=NOW + 500)
    assert revocations.merge(copy.current().entries.values()) == 1
    assert all(revocations.is_revoked(each) for each in (one, two, three))
    clock.now += 200
    assert not revocations.is_revoked(one)
    assert revocations.is_revoked(two)


def test_merging_beyond_the_limit_adds_nothing(revocations: Revocations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REVOCATIONS", 1)
    revocations.revoke(("user", "ada"))
    other = RevocationSet.of([module.Revocation(kind="user", id="bob", until=FOREVER, at=1)])
    with pytest.raises(RevocationError, match="at most 1"):
        revocations.merge(other.entries.values())
    assert not revocations.is_revoked(("user", "bob"))
