"""The send window: order, limits, and abandoned calls."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.runtime.rpc import MailboxFull, RpcError
from sluice.runtime.rpc.transport.window import (
    MAX_OPEN_BYTES,
    MAX_OPEN_CALLS,
    MAX_WAITING_CALLS,
    SendWindow,
    Waiting,
    has_room,
)


def nothing() -> None:
    """Do nothing; stands for sending a call."""


def test_calls_beyond_the_window_wait() -> None:
    window = SendWindow()
    calls = [window.submit(1, nothing) for _ in range(MAX_OPEN_CALLS + 1)]
    assert [call.sent for call in calls] == [True] * MAX_OPEN_CALLS + [False]
    window.release(1, 1)
    assert calls[-1].sent


def test_too_many_waiting_calls_are_refused() -> None:
    window = SendWindow()
    for _ in range(MAX_OPEN_CALLS + MAX_WAITING_CALLS):
        last = window.submit(0, nothing)
    with pytest.raises(MailboxFull):
        window.submit(0, nothing)
    window.abandon(last)
    window.submit(0, nothing)


def test_releasing_more_than_was_sent_is_an_error() -> None:
    window = SendWindow()
    window.submit(5, nothing)
    with pytest.raises(RpcError):
        window.release(2, 5)
    with pytest.raises(RpcError):
        window.release(1, 6)


class WindowMachine(RuleBasedStateMachine):
    """Compares the window with a plain model.

    Calls are sent in submission order without the abandoned ones, and never too many.
    """

    def __init__(self) -> None:
        super().__init__()
        self.window = SendWindow()
        self.sent: list[int] = []
        self.calls: list[Waiting] = []
        self.abandoned: set[int] = set()
        self.done: set[int] = set()

    @rule(size=st.sampled_from([0, 1, MAX_OPEN_BYTES // 3, MAX_OPEN_BYTES]))
    def submit(self, size: int) -> None:
        number = len(self.calls)
        self.calls.append(self.window.submit(size, lambda: self.sent.append(number)))

    @precondition(lambda self: any(not call.sent for call in self.calls))
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n, call in enumerate(self.calls) if not call.sent]))
        self.abandoned.add(number)
        self.window.abandon(self.calls[number])

    @precondition(lambda self: len(self.done) < len(self.sent))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n in self.sent if n not in self.done]))
        self.done.add(number)
        self.window.release(1, self.calls[number].size)

    @invariant()
    def order_is_kept(self) -> None:
        assert self.sent == sorted(self.sent)
        assert not self.abandoned & set(self.sent)

    @invariant()
    def nobody_waits_without_need(self) -> None:
        under_way = [self.calls[number].size for number in self.sent if number not in self.done]
        waiting = [n for n, call in enumerate(self.calls) if not call.sent and n not in self.abandoned]
        if waiting:
            assert not has_room(len(under_way), sum(under_way))
        if under_way:
            assert has_room(len(under_way) - 1, sum(under_way) - max(under_way))


WindowMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40)
TestWindow = WindowMachine.TestCase
