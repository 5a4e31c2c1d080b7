"""Taking connections from a listening socket, none of which is lost."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection, and the address of its peer; neither socket blocks.

    When it is cancelled no connection was taken. ``loop.sock_accept`` drops one that has come a moment before, and its
    peer waits until the garbage is collected.

    Raises:
        OSError: it has gone already, or there are no descriptors.
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
