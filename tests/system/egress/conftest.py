"""A DNS server and a server outside, for jobs that connect to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.authz import DEFAULT_POLICY
from tests.name_server import name_server

ALLOWED, REFUSED = "allowed.example.test", "refused.example.test"
PLACE = "127.0.0.9"


def rules(port: int, *names: str) -> str:
    """Return an egress rule that allows ``port`` of ``names``."""
    to = json.dumps([f"{name}:{port}" for name in names])
    return f'\n[[egress]]\nto = {to}\nusers = ["*"]\nprotocol = "tcp"\naddresses = ["127.0.0.0/8"]\n'


def write_policy(home: Path, egress: str) -> None:
    """Replace the policy of the cluster by the default one with these rules."""
    staged = home / "gateway" / "policy.new"
    staged.write_text(DEFAULT_POLICY.read_text() + egress)
    staged.chmod(0o600)
    staged.rename(home / "gateway" / "policy.toml")


@pytest.fixture
def names() -> Iterator[str]:
    """Provide the address of a DNS server that knows the allowed and the refused name."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    @asynccontextmanager
    async def both() -> Any:
        async with name_server() as server:
            server.names |= {ALLOWED: (PLACE,), REFUSED: (PLACE,)}
            yield server.address

    serving = both()
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(20)
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass
class Server:
    """A server that sends ``hello`` to each client, and keeps connections open."""

    port: int
    open: list[socket.socket] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    """Provide a listening server."""
    listening = socket.create_server((PLACE, 0))
    made = Server(listening.getsockname()[1])

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            made.open.append(client)
            client.sendall(b"hello")

    thread = threading.Thread(target=serve)
    thread.start()
    yield made
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()
    for each in made.open:
        each.close()
