"""What is sent, what is kept until it has arrived, and what goes out again; time limits of many futures."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.deadlines import Deadlines, Expired
from sluice.runtime.rpc.errors import ProtocolViolation
from sluice.runtime.rpc.outbox import Outbox


def numbered(number: int) -> bytes:
    return wire.encode_envelope(wire.Cancel(number))


def ids(batch: bytes) -> list[int]:
    return [each.id for each in (wire.decode_batch(batch) if batch else []) if isinstance(each, wire.Cancel)]


def test_without_a_session_nothing_is_kept() -> None:
    outbox = Outbox()
    outbox.add(numbered(1))
    assert ids(outbox.next_batch()) == [1]
    assert outbox.size == 0
    assert not outbox
    assert outbox.next_batch() == b""


def test_what_concerns_the_stream_goes_first_once_of_each_kind() -> None:
    outbox = Outbox()
    outbox.add(numbered(1))
    outbox.add_urgent(wire.Received(1))
    outbox.add_urgent(wire.Ping())
    outbox.add_urgent(wire.Received(2))
    assert wire.decode_batch(outbox.next_batch(urgent_only=True)) == [wire.Received(2), wire.Ping()]
    assert wire.decode_batch(outbox.next_batch()) == [wire.Cancel(1)]


@given(st.lists(st.sampled_from(["add", "send", "acknowledge", "lose"]), max_size=60))
def test_every_envelope_arrives_once_and_in_order_however_often_the_stream_breaks(steps: list[str]) -> None:
    outbox, arrived, flying, added = Outbox(), list[int](), list[int](), 0
    outbox.retain()
    for step in [*steps, "lose", "send", "arrive"]:
        if step == "add":
            outbox.add(numbered(added))
            added += 1
        elif step == "send":
            flying += ids(outbox.next_batch())
        elif step == "acknowledge":
            arrived += flying
            flying = []
            outbox.acknowledged(len(arrived))
        elif step == "arrive":
            arrived += flying
        else:
            half = len(flying) // 2  # some of what was on its way has arrived when the stream breaks
            arrived += flying[:half]
            flying = []
            outbox.rewind(len(arrived))
    assert arrived == list(range(added))


def test_a_peer_that_lies_about_the_past_is_found_out() -> None:
    outbox = Outbox()
    outbox.retain()
    for number in range(10):
        outbox.add(numbered(number))
    outbox.next_batch()
    outbox.acknowledged(4)
    for lie in (3, 11):
        with pytest.raises(ProtocolViolation, match=f"acknowledges {lie}"):
            outbox.rewind(lie)
    outbox.rewind(4)
    assert ids(outbox.next_batch()) == [4, 5, 6, 7, 8, 9]
    assert outbox.size == sum(len(numbered(number)) for number in range(4, 10))
    outbox.acknowledged(10)
    assert outbox.size == 0


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
