"""Sessions shared by the auth services of a home: each sees the changes of the others and loses none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.gateway.credentials.session_store import FLUSH_SECONDS, SessionStore, read_sessions, session_file
from sluice.gateway.credentials.sessions import NoSession, SessionLimits
from sluice.gateway.credentials.token_last_used import TokensLastUsed, read_last_used
from sluice.gateway.errors import SessionError
from sluice.gateway.principal import Subject
from sluice.pki.assertions.principal import TokenId

ADA = Subject("ada", "user")
LIMITS = SessionLimits(lifetime=36000, idle=3600)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path).create()


@pytest.fixture
def two(home: Home, clock: Clock) -> tuple[SessionStore, SessionStore]:
    return SessionStore(home, LIMITS, clock), SessionStore(home, LIMITS, clock)


def test_a_session_begun_at_one_service_is_known_and_ended_at_another(two: tuple[SessionStore, SessionStore]) -> None:
    one, other = two
    record, text = one.begin(ADA, "browser")
    assert other.authenticate(text) == record
    other.end(record.id)
    with pytest.raises(NoSession):
        one.authenticate(text)


def test_sessions_begun_at_both_services_are_kept(two: tuple[SessionStore, SessionStore], home: Home) -> None:
    begun = [store.begin(Subject(f"user-{number}", "user"), "browser")[0] for number, store in enumerate(two * 3)]
    assert [each.id for each in read_sessions(home).records] == [each.id for each in begun]


def test_the_later_of_two_uses_of_a_session_at_both_services_counts(
    two: tuple[SessionStore, SessionStore], home: Home, clock: Clock
) -> None:
    one, other = two
    record, text = one.begin(ADA, "browser")
    clock.now += 100
    other.used(record.id)
    clock.now += 100
    one.used(record.id)
    one.flush()
    other.flush()
    assert [each.seen_at for each in read_sessions(home).records] == [clock.now]
    clock.now += LIMITS.idle - 1
    assert other.authenticate(text).id == record.id


def test_a_session_use_is_written_before_another_service_regards_it_as_idle(
    two: tuple[SessionStore, SessionStore], clock: Clock
) -> None:
    one, other = two
    record, text = one.begin(ADA, "browser")
    clock.now += FLUSH_SECONDS - 1
    one.used(record.id)
    one.flush_if_due()
    assert other.records[0].seen_at == record.seen_at, "it is not due yet"
    clock.now += LIMITS.idle / 2 + FLUSH_SECONDS
    one.begin(Subject("grace", "user"), "browser")  # writes, so that nothing is due for a while
    one.used(record.id)
    clock.now += 1
    one.flush_if_due()
    clock.now += LIMITS.idle / 2 + 10
    assert other.authenticate(text).id == record.id


def test_a_session_use_counts_at_its_own_service_before_it_is_written(
    two: tuple[SessionStore, SessionStore], clock: Clock
) -> None:
    one, _ = two
    record, text = one.begin(ADA, "browser")
    clock.now += LIMITS.idle - 1
    one.used(record.id)
    clock.now += LIMITS.idle - 1
    assert one.authenticate(text).seen_at == clock.now - LIMITS.idle + 1


def test_an_auth_service_with_a_damaged_session_file_refuses_everybody(
    two: tuple[SessionStore, SessionStore], home: Home
) -> None:
    one, other = two
    _, text = one.begin(ADA, "browser")
    kept = session_file(home).read_bytes()
    session_file(home).write_bytes(b"damaged")
    for store in two:
        with pytest.raises(SessionError, match="damaged"):
            store.authenticate(text)
    with pytest.raises(SessionError, match="damaged"):
        other.begin(ADA, "browser")
    session_file(home).write_bytes(kept)
    assert other.authenticate(text).name == "ada"


def no_space(path: Path, _: bytes) -> None:
    raise StoreError(f"cannot write {path}: no space left on device")


def test_a_session_use_that_a_full_disk_refused_is_written_later(
    two: tuple[SessionStore, SessionStore], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    record, _ = one.begin(ADA, "browser")
    clock.now += 100
    one.used(record.id)
    with monkeypatch.context() as full:
        full.setattr("sluice.gateway.credentials.record_file.write_secret", no_space)
        with pytest.raises(StoreError, match="no space"):
            one.flush()
    one.flush()
    assert other.records[0].seen_at == clock.now


def test_token_uses_at_both_services_are_kept(home: Home, clock: Clock) -> None:
    one, other = TokensLastUsed(home, clock), TokensLastUsed(home, clock)
    one.used(TokenId("t-1"))
    clock.now += 10
    other.used(TokenId("t-1"))
    other.used(TokenId("t-2"))
    other.flush()
    one.flush()
    assert read_last_used(home) == {"t-1": clock.now, "t-2": clock.now}
