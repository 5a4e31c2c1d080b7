"""Open streams end when their credential does, and no others."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gateway.errors import TokenStoreError
from gateway.revocations import RevocationKind, Revocations
from gateway.standing import answer, standing_in, stands_in
from gateway.token_book import TokenBook
from gateway.tokens import TokenStore, create_token, token_file
from pki.assertions import Asserted
from pki.files import write_secret
from pki.home import Home
from pki.standing import MAX_ASKED, Cut, Holder, OpenStreams


def asserted(name: str, credential: str = "c", method: str = "token") -> Asserted:
    return Asserted(name, ("submitter",), (), method, credential, "r")


async def opened(streams: OpenStreams, who: Asserted) -> asyncio.Task[str]:
    """A task that serves a stream until it is cut."""
    begun = asyncio.Event()

    async def serve() -> str:
        try:
            with streams.entered(who):
                begun.set()
                await asyncio.Event().wait()
        except Cut:
            await asyncio.sleep(0)  # it can still say why
            return "cut"
        return "ended"

    task = asyncio.create_task(serve())
    await begun.wait()
    return task


async def test_only_the_streams_of_who_may_not_stay_are_cut() -> None:
    gone: set[str] = set()

    async def standing(everybody: AbstractSet[Asserted]) -> AbstractSet[Asserted]:
        return {who for who in everybody if who.principal not in gone}

    streams = OpenStreams(standing)
    ada, bob = await opened(streams, asserted("ada")), await opened(streams, asserted("bob"))
    assert await streams.look() == 0
    gone.add("ada")
    assert await streams.look() == 1
    assert await ada == "cut"
    assert await streams.look() == 0
    assert not bob.done()
    bob.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bob
    assert await streams.look() == 0


@pytest.mark.parametrize(
    ("kind", "identifier"), [("user", "eve"), ("session", "s-1"), ("certificate", "s-1"), ("pass", "p-1")]
)
def test_whoever_has_something_revoked_may_not_stay(tmp_path: Path, kind: RevocationKind, identifier: str) -> None:
    home = Home.at(tmp_path).create()
    stands = stands_in(home)
    eve = replace(asserted("eve", "s-1", "session"), id="p-1")
    assert stands(Holder.of(eve))
    Revocations.of(home).revoke(kind, identifier)
    assert not stands(Holder.of(eve))
    assert stands(Holder.of(asserted("ada", "s-2", "session")))


async def test_when_nobody_can_tell_the_streams_end() -> None:
    async def broken(_: AbstractSet[Asserted]) -> AbstractSet[Asserted]:
        raise TokenStoreError("damaged")

    streams = OpenStreams(broken)
    ada = await opened(streams, asserted("ada"))
    assert await streams.look() == 1
    assert await ada == "cut"


def test_a_token_stands_until_it_is_revoked_expires_or_is_gone(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    create_token(home, name="ada", role="submitter", lifetime=dt.timedelta(hours=1))
    (record,) = TokenStore(home).read().records
    stands = stands_in(home)
    assert stands(Holder.of(asserted("ada", record.id)))
    assert not stands(Holder.of(asserted("bob", record.id)))
    assert not stands(Holder.of(asserted("ada", "unknown")))
    TokenStore(home).revoke(record.id)
    assert not stands(Holder.of(asserted("ada", record.id)))
    book, old, _ = TokenBook().mint("ada", record.role, ttl=dt.timedelta(seconds=60), now=time.time() - 120)
    write_secret(token_file(home), book.encode())
    assert not stands(Holder.of(asserted("ada", old.id)))
    write_secret(token_file(home), b"{")
    with pytest.raises(TokenStoreError):
        stands(Holder.of(asserted("ada", old.id)))


async def test_a_process_of_the_home_and_one_elsewhere_get_the_same_verdicts(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    eve, ada = asserted("eve", "s-1", "session"), asserted("ada", "s-2", "session")
    Revocations.of(home).revoke("user", "eve")
    assert await standing_in(home)({eve, ada}) == {ada}
    assert answer(stands_in(home), msgspec.json.encode([Holder.of(eve), Holder.of(ada)])) == b"[false,true]"


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'["eve"]', id="names"),
        pytest.param(b'[{"principal": "eve"}]', id="no credential"),
        pytest.param(msgspec.json.encode([Holder.of(asserted("a"))] * (MAX_ASKED + 1)), id="too many"),
    ],
)
def test_a_malformed_question_is_no_question(tmp_path: Path, asked: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        answer(stands_in(Home.at(tmp_path).create()), asked)
