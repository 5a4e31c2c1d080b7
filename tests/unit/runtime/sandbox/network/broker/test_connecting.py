"""Calls that a signal interrupts after they were carried out: the program repeats them."""

from __future__ import annotations

import errno
import socket
import struct
from typing import cast

import pytest

from sluice.runtime.sandbox.network.broker.connecting import CallHandler, NetworkContext
from sluice.runtime.sandbox.network.broker.tracker import Tracker
from sluice.runtime.sandbox.network.events import Connect, Decision, Inside, Rules
from sluice.runtime.sandbox.network.names.names import Names
from sluice.runtime.sandbox.network.refusals import Refusals
from sluice.runtime.sandbox.network.sockets.calls import Call, cookie_of

NAMESPACE = 7


class Everything:
    """Rules for which every destination is inside."""

    async def decide(self, connect: Connect) -> Decision:
        return Inside()


class Waiting:
    """A call of a waiting program, with a socket of its sandbox."""

    number = 0
    thread = 1
    given = None
    namespace = NAMESPACE

    def __init__(self, made: socket.socket, sockaddr: bytes) -> None:
        self.socket = made
        self.cookie = cookie_of(made)
        self._sockaddr = sockaddr

    def sockaddr(self) -> bytes:
        return self._sockaddr

    def process(self) -> str:
        return "python"

    def waits(self) -> bool:
        return True


@pytest.fixture
def handler() -> CallHandler:
    nobody, nothing = cast("Tracker", None), cast("Refusals", None)
    context = NetworkContext(NAMESPACE, cast("Rules", Everything()), Names(), nobody, nothing, None, {}, {})
    return CallHandler("python", context)


async def test_a_connect_repeated_after_a_lost_answer_succeeds_once(handler: CallHandler) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as program:
        port = server.getsockname()[1]
        call = cast(
            "Call", Waiting(program, struct.pack("=H", socket.AF_INET) + port.to_bytes(2) + b"\x7f\0\0\1" + bytes(8))
        )
        assert await handler.connect(call) == 0
        handler.answer_lost(call, 0)
        assert await handler.connect(call) == 0
        assert await handler.connect(call) == errno.EISCONN


async def test_a_lost_answer_does_not_apply_to_a_connection_made_after_a_disconnect(handler: CallHandler) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as program:
        port = server.getsockname()[1]
        call = cast(
            "Call", Waiting(program, struct.pack("=H", socket.AF_INET) + port.to_bytes(2) + b"\x7f\0\0\1" + bytes(8))
        )
        assert await handler.connect(call) == 0
        handler.answer_lost(call, 0)
        gone = cast("Call", Waiting(program, struct.pack("=H14x", socket.AF_UNSPEC)))
        assert await handler.connect(gone) == 0
        assert await handler.connect(call) == 0
        assert program.getpeername() == ("127.0.0.1", port)
