"""The network of a job's process, which is made in a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sluice.runtime.job_network import JobNetwork
from sluice.runtime.sandbox.network import Answer, Connect, Decision
from tests.integration.runtime.sandbox.network.conftest import Kept


class Nowhere:
    """Egress rules that allow no call, and record that they are closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def decide(self, connect: Connect) -> Decision:
        raise AssertionError(connect)

    async def resolve(self, name: str) -> Answer:
        raise AssertionError(name)

    def close(self) -> None:
        self.closed.set()


async def nobody(port: int) -> tuple[str, ...]:
    raise AssertionError(port)


@pytest.mark.parametrize("after_seconds", [0, 0.001, 0.01, 0.02, 0.05])
async def test_a_network_whose_opening_is_cancelled_is_closed(after_seconds: float) -> None:
    egress_rules = Nowhere()
    opening = asyncio.create_task(
        JobNetwork.open("127.0.0.1", ("driver",), ask=nobody, egress_rules=egress_rules, observer=Kept(), uid=None)
    )
    await asyncio.sleep(after_seconds)
    opening.cancel()
    try:
        network = await opening
    except asyncio.CancelledError:
        pass
    else:  # it was there first
        network.close()
    assert await asyncio.to_thread(egress_rules.closed.wait, 30)
