"""Sending in batches, and deadlines of many futures."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.deadlines import Deadlines, Expired
from sluice.runtime.rpc.transport.outbox import Outbox


def numbered(number: int) -> bytes:
    return wire.encode_envelope(wire.Cancel(number))


def ids(batch: bytes) -> list[int]:
    return [each.id for each in (wire.decode_batch(batch) if batch else []) if isinstance(each, wire.Cancel)]


def test_an_outbox_does_not_keep_sent_envelopes() -> None:
    outbox = Outbox()
    outbox.add(numbered(1))
    assert ids(outbox.next_batch()) == [1]
    assert outbox.size == 0
    assert not outbox
    assert outbox.next_batch() == b""


def test_urgent_envelopes_are_sent_first_and_only_the_latest_of_each_kind() -> None:
    outbox = Outbox()
    outbox.add(numbered(1))
    outbox.add_urgent(wire.Hello(1))
    outbox.add_urgent(wire.Ping())
    outbox.add_urgent(wire.Hello(2))
    assert wire.decode_batch(outbox.next_batch(urgent_only=True)) == [wire.Hello(2), wire.Ping()]
    assert wire.decode_batch(outbox.next_batch()) == [wire.Cancel(1)]


@given(st.lists(st.one_of(st.integers(0, 2 * wire.BATCH_TARGET_BYTES), st.none()), max_size=40))
def test_envelopes_are_sent_once_in_order_in_bounded_batches(steps: list[int | None]) -> None:
    """A number in ``steps`` adds an envelope of that size; None sends a batch."""
    outbox, sent, added = Outbox(), list[int](), 0
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            outbox.add(wire.encode_envelope(wire.Reply(added, bytes(step))))
            added += 1
        elif batch := outbox.next_batch():
            replies = [each for each in wire.decode_batch(batch) if isinstance(each, wire.Reply)]
            assert len(replies) == 1 or len(batch) <= wire.BATCH_TARGET_BYTES + 3
            sent += [each.id for each in replies]
    assert sent == list(range(added))
    assert outbox.size == 0
    assert not outbox


async def test_futures_expire_in_time_and_those_done_are_left_alone() -> None:
    deadlines = Deadlines()
    loop = asyncio.get_running_loop()
    late, done, forgotten, slow = (loop.create_future() for _ in range(4))
    for future in (late, done, forgotten):
        deadlines.watch(future, 0.01)
    deadlines.watch(slow, 60.0)
    done.set_result(1)
    deadlines.forget(forgotten, 0.01)
    with pytest.raises(Expired):
        await late
    assert done.result() == 1
    assert not forgotten.done()
    assert not slow.done()
    deadlines.watch(forgotten, 0.01)
    with pytest.raises(Expired):
        await forgotten
    deadlines.forget(slow, 60.0)
    assert len(deadlines) == 0
    deadlines.close()
