"""Open streams end when their credential does, and no others."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.connect.process import standing_in
from gateway.connect.standing import Cut, OpenStreams
from gateway.errors import TokenStoreError
from gateway.revocations import RevocationKind, Revocations
from gateway.token_book import TokenBook
from gateway.tokens import TokenStore, create_token, token_file
from pki.assertions import Asserted
from pki.files import write_secret
from pki.home import Home


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
    streams = OpenStreams(lambda who: who.principal not in gone)
    ada, bob = await opened(streams, asserted("ada")), await opened(streams, asserted("bob"))
    assert streams.look() == 0
    gone.add("ada")
    assert streams.look() == 1
    assert await ada == "cut"
    assert streams.look() == 0
    assert not bob.done()
    bob.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bob
    assert streams.look() == 0


@pytest.mark.parametrize(
    ("kind", "identifier"), [("user", "eve"), ("session", "s-1"), ("certificate", "s-1"), ("pass", "p-1")]
)
def test_whoever_has_something_revoked_may_not_stay(tmp_path: Path, kind: RevocationKind, identifier: str) -> None:
    home = Home.at(tmp_path).create()
    stands = standing_in(home)
    eve = replace(asserted("eve", "s-1", "session"), id="p-1")
    assert stands(eve)
    Revocations.of(home).revoke(kind, identifier)
    assert not stands(eve)
    assert stands(asserted("ada", "s-2", "session"))


async def test_when_nobody_can_tell_the_streams_end() -> None:
    def broken(_: Asserted) -> bool:
        raise TokenStoreError("damaged")

    streams = OpenStreams(broken)
    ada = await opened(streams, asserted("ada"))
    assert streams.look() == 1
    assert await ada == "cut"


def test_a_token_stands_until_it_is_revoked_expires_or_is_gone(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    create_token(home, name="ada", role="submitter", lifetime=dt.timedelta(hours=1))
    (record,) = TokenStore(home).read().records
    stands = standing_in(home)
    assert stands(asserted("ada", record.id))
    assert not stands(asserted("bob", record.id))
    assert not stands(asserted("ada", "unknown"))
    TokenStore(home).revoke(record.id)
    assert not stands(asserted("ada", record.id))
    book, old, _ = TokenBook().mint("ada", record.role, ttl=dt.timedelta(seconds=60), now=time.time() - 120)
    write_secret(token_file(home), book.encode())
    assert not stands(asserted("ada", old.id))
    write_secret(token_file(home), b"{")
    with pytest.raises(TokenStoreError):
        stands(asserted("ada", old.id))
