"""Boxes in their own network, with rules that a test sets, and servers on the machine's loopback."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import pytest

from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import Box, View
from sluice.runtime.sandbox.network import (
    Address,
    Answer,
    Connect,
    Connection,
    Decision,
    HostAddress,
    Inside,
    Network,
    Refusal,
    Refuse,
    Traffic,
)
from tests.integration.runtime.sandbox.conftest import JOB, Boxes

LOOPBACK = ip_address("127.0.0.1")


@dataclass
class Written:
    """Network rules that a test fills in."""

    outside: dict[tuple[str, int], HostAddress] = field(default_factory=dict)
    """By address or name, and port."""
    names: dict[str, Answer] = field(default_factory=dict)
    listeners: dict[int, Callable[[], socket.socket]] = field(default_factory=dict)
    asked: list[Connect] = field(default_factory=list)
    delay_seconds: float = 0.0

    async def decide(self, connect: Connect) -> Decision:
        """Decide by the rules; other connections to loopback are inside, and all else is refused."""
        self.asked.append(connect)
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        found = self.outside.get((connect.name or str(connect.address), connect.port))
        if found is not None:
            return found
        if connect.address.is_loopback:
            return Inside()
        return Refuse(errno.EACCES, "not_allowed")

    async def resolve(self, name: str) -> Answer:
        """Return the answer that the rules have for ``name``."""
        return self.names.get(name, False)

    def listener(self, address: Address, port: int) -> socket.socket | None:
        """Return a socket for a port that has a listener in the rules."""
        return self.listeners[port]() if port in self.listeners else None


@dataclass
class Kept:
    """Keeps the reported connections and refusals in lists."""

    open: list[Connection] = field(default_factory=list)
    ended: list[tuple[Connection, Traffic, str]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    lost: list[Connection] = field(default_factory=list)

    def opened(self, connection: Connection) -> None:
        """Keep the connection."""
        self.open.append(connection)

    def moved(self, connection: Connection, traffic: Traffic) -> None:
        """Ignore the traffic."""

    def closed(self, connection: Connection, traffic: Traffic, seconds: float, reason: str) -> None:
        """Keep the ended connection."""
        self.ended.append((connection, traffic, reason))

    def refused(self, refusal: Refusal) -> None:
        """Keep the refusal."""
        self.refusals.append(refusal)

    def stuck(self, connection: Connection) -> None:
        """Keep the connection, which cannot be ended because the job hides its descriptor."""
        self.lost.append(connection)


@dataclass
class Networked:
    """Boxes of one job in one network."""

    boxes: Boxes
    rules: Written
    rows: Kept
    network: Network

    def box(self, name: str = "python") -> Box:
        """A box in the network."""
        sandbox = self.boxes.sandbox
        sandbox.own([self.boxes.work], JOB)
        return sandbox.box(View(JOB, (), (self.boxes.work,)), sandbox.limits(), network=self.network.attach(name))

    async def start(self, code: str, *arguments: object) -> ChildProcess:
        """Start a Python program in a box of its own."""
        return await self.boxes.start(sys.executable, "-c", code, *map(str, arguments), box=self.box())

    async def run(self, code: str, *arguments: object) -> Any:
        """Run a Python program in a box of its own; return its output, parsed as JSON."""
        ended = await self.boxes.run(sys.executable, "-c", code, *map(str, arguments), box=self.box())
        assert ended.exit.code == 0, ended.err
        return json.loads(ended.out)

    def allow(self, server: Server, *, host: str = "127.0.0.1", port: int | None = None, preamble: bytes = b"") -> None:
        """Let connections to ``host`` and ``port`` (default: the server's) go to ``server``."""
        to = HostAddress(ip_address(server.host), server.port, preamble)
        self.rules.outside[host, server.port if port is None else port] = to


@dataclass
class Server:
    """A server on the machine's loopback that sends each message back with ``> `` before it."""

    host: str
    port: int = 0
    accepted: int = 0
    ended: int = 0
    peers: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.accepted += 1
        self.peers.append(writer.get_extra_info("peername")[0])
        try:
            while data := await reader.read(65536):
                writer.write(b"> " + data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended += 1
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    told = Server("127.0.0.1")
    listening = await asyncio.start_server(told.serve, told.host, 0)
    told.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield told


@pytest.fixture
async def networked(boxes: Boxes) -> AsyncIterator[Networked]:
    rules, rows = Written(), Kept()
    network = await asyncio.to_thread(lambda: Network.open(rules, rows, uid=boxes.sandbox.uid(JOB)))
    yield Networked(boxes, rules, rows, network)
    await asyncio.to_thread(network.close)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is in other processes
            await asyncio.sleep(0.01)
