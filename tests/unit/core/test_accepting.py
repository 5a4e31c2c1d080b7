"""No connection is lost between the kernel and the task that accepts it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sluice.core.accepting import accept


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_accept_loses_no_connection(turns: int) -> None:
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


async def test_accept_waits_for_a_connection_and_returns_a_non_blocking_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        taking = asyncio.create_task(accept(listening))
        await asyncio.sleep(0.01)
        assert not taking.done()
        with socket.create_connection(listening.getsockname()):
            connection, _ = await taking
            with connection:
                assert not connection.getblocking()
