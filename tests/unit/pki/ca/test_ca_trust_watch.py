"""Waiting at the authority for the trust to change: who is answered when, and how many may wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from sluice.core.errors import StoreError
from sluice.pki.ca.protocol import TrustAnswer, TrustSide
from sluice.pki.ca.trust_watch import TrustWatch, View
from sluice.pki.errors import RateLimited
from tests.waiting import until

LONG = 60.0


class Source:
    """The trust that the test has set."""

    def __init__(self) -> None:
        self.internal = TrustSide(ca_pem="A")
        self.edge: TrustSide | None = TrustSide(ca_pem="E")
        self.failure: Exception | None = None
        self.reads = 0

    async def read(self) -> tuple[TrustSide, TrustSide | None]:
        """Return the trust, as the server reads it from disk."""
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return self.internal, self.edge


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def watch(source: Source) -> AsyncIterator[TrustWatch]:
    running = TrustWatch(source.read, wait_seconds=LONG, look_seconds=0.001, max_waiters=2)
    yield running
    await running.close()


def decoded(body: bytes) -> TrustAnswer:
    return msgspec.json.decode(body, type=TrustAnswer)


async def ask(watch: TrustWatch, who: str = "tm-1", known: str = "", view: View = View.MEMBER) -> TrustAnswer:
    return decoded(await watch.poll(who, view, known))


async def waits(watch: TrustWatch, count: int) -> None:
    """Wait until ``count`` peers are waiting."""
    await until(lambda: watch.waiting == count)


async def test_a_peer_with_no_or_an_outdated_version_is_answered_at_once(watch: TrustWatch, source: Source) -> None:
    first = await ask(watch)
    assert first.internal == source.internal
    assert (await ask(watch, known="something else")).version == first.version
    source.internal = TrustSide(ca_pem="AB")
    assert (await ask(watch, known=first.version)).internal == source.internal


async def test_an_up_to_date_peer_is_answered_when_the_trust_changes(watch: TrustWatch, source: Source) -> None:
    known = (await ask(watch)).version
    waiting = asyncio.create_task(ask(watch, known=known))
    await waits(watch, 1)
    source.internal = TrustSide(ca_pem="A", crl_pem="a list")
    answer = await waiting
    assert (answer.internal, answer.version != known) == (source.internal, True)
    assert watch.waiting == 0


async def test_the_answer_contains_only_the_version_when_nothing_changes(source: Source) -> None:
    watch = TrustWatch(source.read, wait_seconds=0)
    known = (await ask(watch)).version
    assert await ask(watch, known=known) == TrustAnswer(version=known)
    await watch.close()


async def test_edge_trust_is_sent_only_to_gateways_and_its_change_wakes_only_them(
    watch: TrustWatch, source: Source
) -> None:
    member, gateway = await ask(watch), await ask(watch, view=View.GATEWAY)
    assert member.edge is None
    assert gateway.edge == source.edge
    others = asyncio.create_task(ask(watch, "tm-1", member.version))
    waiting = asyncio.create_task(ask(watch, "envoy", gateway.version, View.GATEWAY))
    await waits(watch, 2)
    source.edge = TrustSide(ca_pem="E", crl_pem="a list")
    assert (await waiting).edge == source.edge
    assert not others.done()
    others.cancel()
    await waits(watch, 0)


async def test_a_newer_request_of_the_same_identity_replaces_the_waiting_one(watch: TrustWatch) -> None:
    known = (await ask(watch)).version
    earlier = asyncio.create_task(ask(watch, known=known))
    await waits(watch, 1)
    later = asyncio.create_task(ask(watch, known=known))
    assert await earlier == TrustAnswer(version=known)
    assert not later.done()
    assert watch.waiting == 1
    later.cancel()
    await waits(watch, 0)


async def test_a_waiter_over_the_limit_is_rate_limited_and_displaces_nobody(watch: TrustWatch, source: Source) -> None:
    known = (await ask(watch)).version
    waiting = [asyncio.create_task(ask(watch, f"tm-{number}", known)) for number in range(2)]
    await waits(watch, 2)
    with pytest.raises(RateLimited) as refused:
        await ask(watch, "tm-2", known)
    assert 0 < refused.value.retry_after < 5, "in time for a revocation"
    source.internal = TrustSide(ca_pem="AB")
    assert {(await each).internal for each in waiting} == {source.internal}


async def test_waiters_are_answered_with_the_next_change_after_a_disk_failure(
    watch: TrustWatch, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    known = (await ask(watch)).version
    waiting = asyncio.create_task(ask(watch, known=known))
    await waits(watch, 1)
    source.failure = StoreError("damaged")
    reads = source.reads
    await until(lambda: source.reads >= reads + 3)
    source.internal, source.failure = TrustSide(ca_pem="AB"), None
    assert (await waiting).internal == source.internal
    assert len([record for record in caplog.records if "damaged" in record.getMessage()]) == 1


async def test_closing_the_watch_answers_all_waiters(source: Source) -> None:
    watch = TrustWatch(source.read, wait_seconds=LONG, look_seconds=LONG)
    known = (await ask(watch)).version
    assert source.reads == 1
    waiting = asyncio.create_task(ask(watch, known=known))
    await waits(watch, 1)
    await watch.close()
    assert await waiting == TrustAnswer(version=known)
