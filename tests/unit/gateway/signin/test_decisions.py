"""Small decisions of the sign-in.

They concern attempts, device codes, throttles, cookies, certificates and return paths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.gateway.authn.authenticator import parse_cookies
from sluice.gateway.authn.client_certificate import NoClientCertificate, parse
from sluice.gateway.credentials.sessions import (
    NoSession,
    SessionBook,
    SessionLimits,
)
from sluice.gateway.principal import Subject
from sluice.gateway.shared_store.sqlite import SqliteStore
from sluice.gateway.signin.attempts import LIFETIME_SECONDS, MAX_ATTEMPTS_PER_ADDRESS, Attempts
from sluice.gateway.signin.device_codes import (
    INTERVAL_SECONDS,
    LIFETIME_SECONDS as CODE_SECONDS,
    MAX_OPEN_PER_ADDRESS,
    Answer,
    Approver,
    DeviceCodes,
    normalized,
)
from sluice.gateway.signin.login import throttle_keys
from sluice.gateway.signin.pending_requests import PendingRequests, TooManyPending
from sluice.gateway.signin.requests import return_path
from sluice.gateway.signin.throttle import (
    FORGET_SECONDS,
    FREE_FAILURES,
    MAX_WAIT_SECONDS,
    Throttle,
)
from sluice.pki.assertions.principal import CertificateId, Credential

NOW = 1_800_000_000.0
HOST = "198.51.100.7"
ADA = Subject("ada", "session", ("staff",))
ADA_APPROVES = Approver("ada", "session", ("staff",))
LIMITS = SessionLimits(lifetime=3600, idle=600)


class Waiting(msgspec.Struct, frozen=True):
    """A pending request."""

    what: str = ""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with contextlib.closing(SqliteStore(tmp_path / "shared.sqlite")) as opened:
        yield opened


def test_a_sign_in_attempt_can_be_finished_once_in_its_own_browser_and_in_time(store: SqliteStore) -> None:
    attempts = Attempts(store)
    kept = attempts.begin("b1", "/x", HOST, NOW)
    assert attempts.finish(kept.state, "b1", NOW) == kept
    assert attempts.finish(kept.state, "b1", NOW) is None
    foreign, late, nobodys = (attempts.begin(browser, "/", HOST, NOW) for browser in ("b1", "b1", ""))
    assert attempts.finish(foreign.state, "b2", NOW) is None
    assert attempts.finish(foreign.state, "b1", NOW) is None
    assert attempts.finish(late.state, "b1", NOW + LIFETIME_SECONDS + 1) is None
    assert attempts.finish(nobodys.state, "", NOW) is None
    assert attempts.finish("invented", "b1", NOW) is None


def test_a_flood_of_attempts_does_not_displace_pending_attempts(store: SqliteStore) -> None:
    attempts = Attempts(store)
    mine = attempts.begin("b", "/", HOST, NOW)
    for _ in range(MAX_ATTEMPTS_PER_ADDRESS):
        attempts.begin("", "/", "192.0.2.66", NOW)
    with pytest.raises(TooManyPending, match=r"192\.0\.2\.66") as refused:
        attempts.begin("", "/", "192.0.2.66", NOW + 1)
    assert refused.value.retry_after == LIFETIME_SECONDS - 1
    others = attempts.begin("c", "/", HOST, NOW)
    assert attempts.finish(mine.state, "b", NOW) == mine
    assert attempts.finish(others.state, "c", NOW) == others
    # They do not wait for ever.
    attempts.begin("", "/", "192.0.2.66", NOW + LIFETIME_SECONDS + 1)


def test_no_pending_request_is_evicted_when_the_store_is_full(store: SqliteStore) -> None:
    waiting = PendingRequests(store, "w", Waiting, lifetime=60.0, limit=3, limit_per_address=2)
    waiting.add("mine", Waiting("mine"), HOST, NOW)
    for number in range(2):
        waiting.add(f"flood {number}", Waiting(), f"2001:db8:0:{number}::1", NOW + 10)
    with pytest.raises(TooManyPending) as refused:
        waiting.add("late", Waiting(), "203.0.113.9", NOW + 20)
    assert refused.value.retry_after == 40.0
    assert waiting.get("mine", NOW + 60) == Waiting("mine")
    assert waiting.pop("mine", NOW + 60) == Waiting("mine")
    assert waiting.pop("mine", NOW + 60) is None
    waiting.add("late", Waiting("late"), "203.0.113.9", NOW + 60)
    assert waiting.all(NOW + 71) == [Waiting("late")]


def test_ipv6_addresses_of_one_network_share_a_limit(store: SqliteStore) -> None:
    waiting = PendingRequests(store, "w", Waiting, lifetime=60.0, limit=100, limit_per_address=2)
    for number in range(2):
        waiting.add(str(number), Waiting(), f"2001:db8::{number}", NOW)
    with pytest.raises(TooManyPending):
        waiting.add("one more", Waiting(), "2001:db8::ffff", NOW)
    assert waiting.pop("0", NOW) == Waiting()
    waiting.add("instead", Waiting(), "2001:db8::ffff", NOW)


def test_a_flood_of_device_codes_does_not_displace_waiting_ones(store: SqliteStore) -> None:
    codes = DeviceCodes(store)
    code, pending = codes.begin(HOST, NOW)
    for _ in range(MAX_OPEN_PER_ADDRESS):
        codes.begin("192.0.2.66", NOW)
    with pytest.raises(TooManyPending):
        codes.begin("192.0.2.66", NOW)
    assert codes.find(pending.user_code, NOW) == pending
    codes.decide(pending.user_code, ADA_APPROVES, NOW)
    assert codes.ask(code, NOW + INTERVAL_SECONDS) == ADA


def test_a_device_code_can_be_redeemed_once_after_its_approval(store: SqliteStore) -> None:
    codes = DeviceCodes(store)
    code, pending = codes.begin("192.0.2.1", NOW)
    assert codes.ask(code, NOW) is Answer.PENDING
    assert codes.ask(code, NOW + 0.5) is Answer.SLOW_DOWN
    found = codes.find(pending.user_code.lower(), NOW)
    assert found is not None
    assert found.user_code == pending.user_code
    assert codes.decide(pending.user_code.lower(), ADA_APPROVES, NOW) == found
    assert codes.find(pending.user_code, NOW) is None
    assert codes.decide(pending.user_code, None, NOW) is None, "the first decision counts"
    assert codes.ask(code, NOW + INTERVAL_SECONDS + 6) == ADA
    assert codes.ask(code, NOW + 60) is Answer.EXPIRED


def test_a_device_code_that_is_denied_unknown_or_expired_is_refused(store: SqliteStore) -> None:
    codes = DeviceCodes(store)
    code, pending = codes.begin("", NOW)
    old, _ = codes.begin("", NOW)
    codes.decide(pending.user_code, None, NOW)
    assert codes.ask(code, NOW) is Answer.DENIED
    assert codes.ask("invented", NOW) is Answer.EXPIRED
    assert codes.ask(old, NOW + CODE_SECONDS + 1) is Answer.EXPIRED


@pytest.mark.parametrize("typed", ["", "BCDF", "BCDF-GHJ", "BCDF-GHJKL", "AAAA-AAAA", "\x00"])
def test_a_malformed_user_code_finds_no_device_code(typed: str, store: SqliteStore) -> None:
    assert normalized(typed) == ""
    assert DeviceCodes(store).find(typed, NOW) is None


def test_repeated_failures_are_throttled_longer_and_forgotten_after_a_while(store: SqliteStore) -> None:
    throttle = Throttle(store, "t")
    for _ in range(FREE_FAILURES):
        assert throttle.wait("k", NOW) == 0
        throttle.failed("k", NOW)
    assert throttle.wait("k", NOW) == 1
    throttle.failed("k", NOW)
    assert throttle.wait("k", NOW) == 2
    for _ in range(50):
        throttle.failed("k", NOW)
    assert throttle.wait("k", NOW) == MAX_WAIT_SECONDS
    assert throttle.wait("other", NOW) == 0
    assert throttle.wait("k", NOW + FORGET_SECONDS + 1) == 0
    throttle.succeeded("k", NOW)
    assert throttle.wait("k", NOW) == 0


def test_a_full_throttle_forgets_its_oldest_key(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = Throttle(store, "t", free=1)
    monkeypatch.setattr("sluice.gateway.signin.throttle.MAX_KEYS", 20)
    for number in range(21):
        throttle.failed(str(number), NOW + number / 100)
    assert throttle.wait("0", NOW) == 0
    assert throttle.wait("1", NOW) > 0


def test_a_session_expires_by_its_age_and_when_idle() -> None:
    book, record, text = SessionBook().begin(ADA, "browser", LIMITS, now=NOW)
    assert book.authenticate(text, LIMITS, now=NOW + 599) == record
    with pytest.raises(NoSession, match="expired"):
        book.authenticate(text, LIMITS, now=NOW + 600)
    for minute in range(1, 60):
        book = book.seen(record.id, now=NOW + 60 * minute)
    assert book.authenticate(text, LIMITS, now=NOW + 3599)
    with pytest.raises(NoSession, match="expired"):
        book.authenticate(text, LIMITS, now=NOW + 3600)
    with pytest.raises(NoSession, match="expired"):
        book.authenticate(text, SessionLimits(1800, 600), now=NOW + 3599)


@pytest.mark.parametrize("text", ["", "sls_", "slc_0123456789ab_" + "0" * 64, "sls_0123456789ab_" + "0" * 64])
def test_a_malformed_or_unknown_session_secret_is_refused(text: str) -> None:
    book, _, _ = SessionBook().begin(ADA, "browser", LIMITS, now=NOW)
    with pytest.raises(NoSession):
        book.authenticate(text, LIMITS, now=NOW)


def test_sessions_can_be_read_back_and_their_file_contains_no_secret() -> None:
    book, record, text = SessionBook().begin(ADA, "browser", LIMITS, now=NOW)
    assert text.split("_")[2].encode() not in book.encode()
    assert SessionBook.decode(book.encode()).get(record.id) == record


@pytest.mark.parametrize(
    ("values", "cookies"),
    [
        (("a=1; b=2",), {"a": "1", "b": "2"}),
        (("a=1", "b=2"), {"a": "1", "b": "2"}),
        (("a=1; a=2; b=3",), {"b": "3"}),
        (("a=1", "a=2"), {}),
        (('a="x"',), {"a": "x"}),
        (("a", "=b", ";;", "a b=c"), {}),
        (("a=" + "x" * 20_000,), {}),
    ],
)
def test_cookie_headers_are_parsed_and_duplicate_or_malformed_cookies_dropped(
    values: tuple[str, ...], cookies: dict[str, str]
) -> None:
    assert parse_cookies(values) == cookies


@given(st.text(max_size=200))
def test_only_a_user_certificate_is_accepted_from_the_header(text: str) -> None:
    try:
        found = parse(text, "a.test")
    except NoClientCertificate:
        return
    assert f"spiffe://a.test/user/{found.name}" in text


def test_a_client_certificate_header_of_envoy_is_parsed() -> None:
    value = f'By=spiffe://a.test/gateway/edge;Hash={"0a" * 32};Subject="CN=a\\"b;c,d";URI=spiffe://a.test/user/ada'
    found = parse(value, "a.test")
    assert (found.name, found.credential) == ("ada", Credential.of_certificate(CertificateId("0a" * 32)))


@given(st.text(max_size=100))
def test_the_return_path_is_always_a_path_of_this_gateway(text: str) -> None:
    path = return_path(text)
    assert path.startswith("/")
    assert not path.startswith(("//", "/\\"))
    assert path.isprintable()
    assert path.isascii()


def test_all_addresses_of_an_ipv6_network_share_their_failed_sign_ins() -> None:
    assert throttle_keys("ada", "2001:db8::1") == throttle_keys("ada", "2001:db8::ffff:2")
    assert throttle_keys("ada", "2001:db8::1") != throttle_keys("ada", "2001:db8:0:1::1")
    assert throttle_keys("ada", "192.0.2.1") != throttle_keys("ada", "192.0.2.2")
    assert throttle_keys("ada", "192.0.2.1") != throttle_keys("bob", "192.0.2.1")


def test_the_session_of_a_command_begins_with_its_approval(store: SqliteStore) -> None:
    """A password that is set between approval and poll is newer than the session, which is refused therefore."""
    codes = DeviceCodes(store)
    code, pending = codes.begin("192.0.2.1", NOW)
    codes.decide(pending.user_code, Approver("ada", "user"), NOW)
    who = codes.ask(code, NOW + 300)
    assert isinstance(who, Subject)
    _, record, _ = SessionBook().begin(who, "command", LIMITS, now=NOW + 300)
    assert (record.created_at, record.seen_at) == (NOW, NOW + 300)
    assert record.expires_at == NOW + LIMITS.lifetime
