"""No connection is lost between the kernel and who takes it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sluice.core.accepting import accept


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_is_taken_or_still_waits_whenever_it_is_cancelled(turns: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        taking = asyncio.create_task(accept(listening))
        await asyncio.sleep(0)  # it waits
        with socket.create_connection(listening.getsockname()) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            if taking.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await taking
                taken, address = listening.accept()
            else:
                taken, address = await taking
            with taken:
                assert address == client.getsockname()


async def test_one_that_comes_later_is_waited_for_and_none_of_the_sockets_blocks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        taking = asyncio.create_task(accept(listening))
        await asyncio.sleep(0.01)
        assert not taking.done()
        with socket.create_connection(listening.getsockname()):
            connection, _ = await taking
            with connection:
                assert not connection.getblocking()
