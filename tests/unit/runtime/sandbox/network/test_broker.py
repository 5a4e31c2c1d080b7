"""When the calls of a box are over."""

from __future__ import annotations

import os
from typing import cast

from sluice.runtime.sandbox.network.broker import BoxCalls
from sluice.runtime.sandbox.network.connecting import CallHandler


async def test_a_call_that_is_gone_again_does_not_end_the_box() -> None:
    reading, writing = os.pipe()  # readable and hung up in the same cases as a filter's listener
    calls = BoxCalls("python", cast("CallHandler", None))
    calls._listener = reading

    calls._next()  # woken by a call that a signal has interrupted meanwhile
    assert not calls.ended

    os.close(writing)
    calls._next()
    assert calls.ended
