"""Open streams end when their credential ends; no others do."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.authn.credential_validity import answer, check_in, validity_in
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials.api_tokens import TokenBook, TokenRecord
from sluice.gateway.credentials.revocations import RevocationKey, Revocations
from sluice.gateway.credentials.session_store import FLUSH_SECONDS, SessionStore
from sluice.gateway.credentials.sessions import SessionLimits, SessionRecord
from sluice.gateway.credentials.token_file import TokenStore, create_token, token_file
from sluice.gateway.errors import TokenStoreError
from sluice.gateway.principal import Subject
from sluice.pki.assertions.open_streams import (
    MAX_CHECKED,
    Holders,
    OpenStreams,
    StreamEnded,
    StreamHolder,
)
from sluice.pki.assertions.principal import (
    CertificateId,
    Credential,
    CredentialKind,
    Jti,
    Principal,
    SessionId,
    TokenId,
)
from sluice.pki.assertions.tokens import Assertion

CONFIG = GatewayConfig(session_lifetime=1000.0, session_idle=100.0)


def asserted(name: str, credential: str = "c", kind: CredentialKind = "token") -> Assertion:
    return Assertion(Principal(name, ("submitter",), "user", Credential(kind, credential)), "r")


def session(home: Home, name: str = "ada", token: TokenRecord | None = None) -> SessionRecord:
    """Return a browser session as the auth service begins it: with a password, or with an API token."""
    store = SessionStore(home, SessionLimits(CONFIG.session_lifetime, CONFIG.session_idle))
    who = Subject(name, "user")
    if token is not None:
        who = Subject(name, "token", credential=Credential.of_token(token.id))
    return store.begin(who, "browser")[0]


async def opened(streams: OpenStreams, who: Assertion) -> asyncio.Task[str]:
    """Start a task that serves a stream until it is cut; return once the stream is open."""
    begun = asyncio.Event()

    async def serve() -> str:
        try:
            with streams.entered(who):
                begun.set()
                await asyncio.Event().wait()
        except StreamEnded:
            await asyncio.sleep(0)  # it can still say why
            return "cut"
        return "ended"

    task = asyncio.create_task(serve())
    await begun.wait()
    return task


async def test_only_streams_with_invalid_credentials_are_cut() -> None:
    gone: set[str] = set()

    async def check(everybody: Holders) -> Holders:
        return {who for who in everybody if who.principal not in gone}

    streams = OpenStreams(check)
    ada, bob = await opened(streams, asserted("ada")), await opened(streams, asserted("bob"))
    assert await streams.end_invalid() == 0
    gone.add("ada")
    assert await streams.end_invalid() == 1
    assert await ada == "cut"
    assert await streams.end_invalid() == 0
    assert not bob.done()
    bob.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bob
    assert await streams.end_invalid() == 0


@pytest.mark.parametrize("kind", ["user", "session", "pass"])
def test_a_stream_is_invalid_after_its_user_session_or_access_token_is_revoked(tmp_path: Path, kind: str) -> None:
    home = Home.at(tmp_path).create()
    shown, other = session(home, "eve"), session(home, "ada")
    is_valid = validity_in(home, CONFIG)
    eve = replace(asserted("eve", shown.id, "session"), id=Jti("p-1"))
    assert is_valid(StreamHolder.of(eve))
    keys: dict[str, RevocationKey] = {
        "user": ("user", "eve"),
        "session": ("session", shown.id),
        "pass": ("pass", Jti("p-1")),
    }
    Revocations.of(home).revoke(keys[kind])
    assert not is_valid(StreamHolder.of(eve))
    assert is_valid(StreamHolder.of(asserted("ada", other.id, "session")))


@pytest.mark.parametrize("kind", ["certificate", "jwt"])
def test_a_certificate_or_jwt_is_valid_until_it_or_its_user_is_revoked(tmp_path: Path, kind: CredentialKind) -> None:
    home = Home.at(tmp_path).create()
    is_valid = validity_in(home, CONFIG)
    assert is_valid(StreamHolder.of(asserted("eve", "c-1", kind)))
    # An id means something with its kind alone.
    Revocations.of(home).revoke(("token", TokenId("c-1")))
    Revocations.of(home).revoke(("session", SessionId("c-1")))
    assert is_valid(StreamHolder.of(asserted("eve", "c-1", kind)))
    Revocations.of(home).revoke(("certificate", CertificateId("c-1")))
    assert is_valid(StreamHolder.of(asserted("eve", "c-1", kind))) is (kind == "jwt")
    Revocations.of(home).revoke(("user", "eve"))
    assert not is_valid(StreamHolder.of(asserted("eve", "c-2", kind)))


def test_a_session_id_is_not_accepted_as_a_token_id_or_vice_versa(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    token, _ = TokenStore(home).create("ada", "submitter", dt.timedelta(hours=1))
    begun = session(home, token=token)
    is_valid = validity_in(home, CONFIG)
    assert is_valid(StreamHolder.of(asserted("ada", begun.id, "session")))
    assert is_valid(StreamHolder.of(asserted("ada", token.id, "token")))
    assert not is_valid(StreamHolder.of(asserted("ada", begun.id, "token")))
    assert not is_valid(StreamHolder.of(asserted("ada", token.id, "session")))
    assert not is_valid(StreamHolder.of(asserted("eve", begun.id, "session")))


def _sign_out(home: Home, begun: SessionRecord, _: TokenRecord) -> None:
    SessionStore(home, SessionLimits(1000.0, 100.0)).end(begun.id)


def _revoke_session(home: Home, begun: SessionRecord, _: TokenRecord) -> None:
    Revocations.of(home).revoke(("session", SessionId(begun.id)))


def _revoke_token(home: Home, _: SessionRecord, token: TokenRecord) -> None:
    TokenStore(home).revoke(token.id)


def _revoke_the_id_of_the_token(home: Home, _: SessionRecord, token: TokenRecord) -> None:
    Revocations.of(home).revoke(("token", TokenId(token.id)))


def _forget_token(home: Home, _: SessionRecord, __: TokenRecord) -> None:
    write_secret(token_file(home), TokenBook().encode())


def _lock_user(home: Home, _: SessionRecord, __: TokenRecord) -> None:
    Revocations.of(home).revoke(("user", "ada"))


@pytest.mark.parametrize(
    "end", [_sign_out, _revoke_session, _revoke_token, _revoke_the_id_of_the_token, _forget_token, _lock_user]
)
def test_a_session_begun_with_a_token_ends_with_the_session_or_the_token(
    tmp_path: Path, end: Callable[[Home, SessionRecord, TokenRecord], None]
) -> None:
    home = Home.at(tmp_path).create()
    token, _ = TokenStore(home).create("ada", "submitter", dt.timedelta(hours=1))
    begun, password = session(home, token=token), session(home)
    is_valid = validity_in(home, CONFIG)
    assert is_valid(StreamHolder.of(asserted("ada", begun.id, "session")))
    end(home, begun, token)
    assert not is_valid(StreamHolder.of(asserted("ada", begun.id, "session")))
    assert is_valid(StreamHolder.of(asserted("ada", password.id, "session"))) is (end is not _lock_user)


@pytest.mark.parametrize(
    ("lifetime", "seconds", "stays"),
    [
        pytest.param(3600, 100 + FLUSH_SECONDS - 1, True, id="idle for less than it may"),
        pytest.param(3600, 100 + FLUSH_SECONDS + 1, False, id="idle for longer"),
        pytest.param(50, 10, True, id="before its token's end"),
        pytest.param(50, 90, False, id="after its token's end"),
    ],
)
def test_a_session_begun_with_a_token_ends_when_idle_or_when_the_token_expires(
    tmp_path: Path, lifetime: int, seconds: float, *, stays: bool
) -> None:
    home = Home.at(tmp_path).create()
    token, _ = TokenStore(home).create("ada", "submitter", dt.timedelta(seconds=lifetime))
    begun = session(home, token=token)
    is_valid = validity_in(home, CONFIG, lambda: begun.created_at + seconds)
    assert is_valid(StreamHolder.of(asserted("ada", begun.id, "session"))) is stays


async def test_streams_are_cut_if_their_validity_cannot_be_checked() -> None:
    async def broken(_: Holders) -> Holders:
        raise TokenStoreError("damaged")

    streams = OpenStreams(broken)
    ada = await opened(streams, asserted("ada"))
    assert await streams.end_invalid() == 1
    assert await ada == "cut"


def test_a_token_is_valid_only_while_known_unexpired_and_not_revoked(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    create_token(home, name="ada", role="submitter", lifetime=dt.timedelta(hours=1))
    (record,) = TokenStore(home).read().records
    is_valid = validity_in(home, CONFIG)
    assert is_valid(StreamHolder.of(asserted("ada", record.id)))
    assert not is_valid(StreamHolder.of(asserted("bob", record.id)))
    assert not is_valid(StreamHolder.of(asserted("ada", "unknown")))
    TokenStore(home).revoke(record.id)
    assert not is_valid(StreamHolder.of(asserted("ada", record.id)))
    book, old, _ = TokenBook().mint("ada", record.role, ttl=dt.timedelta(seconds=60), now=time.time() - 120)
    write_secret(token_file(home), book.encode())
    assert not is_valid(StreamHolder.of(asserted("ada", old.id)))
    write_secret(token_file(home), b"{")
    with pytest.raises(TokenStoreError):
        is_valid(StreamHolder.of(asserted("ada", old.id)))


async def test_local_and_remote_validity_checks_agree(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    eve, ada = (StreamHolder.of(asserted(name, session(home, name).id, "session")) for name in ("eve", "ada"))
    Revocations.of(home).revoke(("user", "eve"))
    assert await check_in(home, CONFIG)({eve, ada}) == {ada}
    assert answer(validity_in(home, CONFIG), msgspec.json.encode([eve, ada])) == b"[false,true]"


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'["eve"]', id="names"),
        pytest.param(b'[{"principal": "eve"}]', id="no credential"),
        pytest.param(msgspec.json.encode([StreamHolder.of(asserted("a"))] * (MAX_CHECKED + 1)), id="too many"),
    ],
)
def test_a_malformed_validity_request_is_refused(tmp_path: Path, asked: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        answer(validity_in(Home.at(tmp_path).create(), CONFIG), asked)
