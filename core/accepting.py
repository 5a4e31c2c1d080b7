"""Accepts connections from a listening socket and loses none when the caller is cancelled."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection, and the address of its peer; neither socket blocks.

    When this is cancelled, it has accepted no connection. ``loop.sock_accept`` would drop one that has just arrived,
    and its peer would wait until the garbage is collected.

    Raises:
        OSError: the peer has gone already, or no file descriptors are left.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, address = listening.accept()
        except (BlockingIOError, InterruptedError):
            await _readable(loop, listening)
        else:
            connection.setblocking(False)
            return connection, address


async def _readable(loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)
