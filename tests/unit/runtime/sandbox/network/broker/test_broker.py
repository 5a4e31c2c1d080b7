"""When the calls of a sandbox have ended."""

from __future__ import annotations

import os
import signal
from typing import cast

from sluice.runtime.sandbox.network.broker.broker import BoxCalls, broker
from sluice.runtime.sandbox.network.broker.connecting import CallHandler


async def test_a_call_interrupted_by_a_signal_does_not_end_the_box_calls() -> None:
    reading, writing = os.pipe()  # readable and hung up in the same cases as a filter's listener
    calls = BoxCalls("python", cast("CallHandler", None))
    calls._listener = reading

    calls._next()  # woken by a call that a signal has interrupted meanwhile
    assert not calls.ended

    os.close(writing)
    calls._next()
    assert calls.ended


async def blocked_signals() -> set[signal.Signals | int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_the_broker_blocks_signals_that_could_interrupt_its_kernel_calls() -> None:
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP} <= broker().run(blocked_signals())
