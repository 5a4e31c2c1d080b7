"""The questions that the network of a box asks, and the events that it reports."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Connect:
    """A program in a box wants a TCP connection."""

    box: str
    """Which box, in the words of who made it: ``driver``, ``python``, ``executor``."""
    process: str
    """The name that the program gives itself, at most 15 characters; not to be trusted."""
    pid: int
    address: Address
    """IPv4 addresses in IPv6 are IPv4 here; the unspecified address is the loopback one."""
    port: int
    name: str | None = None
    """The host name that the resolver has answered with this address."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Connect within the box's own network."""


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Give the program a socket of the machine's network that is connected to ``address``."""

    address: Address
    port: int
    preamble: bytes = b""
    """Bytes sent before the program gets the connection, at most :data:`MAX_PREAMBLE_BYTES`."""
    recorded: bool = True
    """Whether :class:`Rows` is told of the connection."""
    note: object = None
    """A note of :class:`Rules` for its own later use."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The call fails with ``error`` (of :mod:`errno`)."""

    error: int
    reason: str
    """A short code for the row, as ``not_allowed``."""


Decision = Inside | HostAddress | Refuse
Answer = bool | Sequence[Address] | None
"""Of a name: True: it gets addresses of this network alone; False: it does not exist; or its real addresses. None:
nobody can say now.
"""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection out of the box that a program has been given."""

    id: int
    """Unique in this process."""
    connect: Connect
    to: HostAddress
    opened: float
    """Seconds of the epoch."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has gone over a connection, in bytes, as far as the other end has acknowledged or sent it."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """An attempt to leave the box that was refused, ``count`` times since the last row of it."""

    box: str
    """The box; empty: any box of this network."""
    protocol: str
    """``tcp``, ``udp``, ``icmp``, ``dns``, ``ip-<number>``, ``unix``, ``listen``; of calls that are always refused:
    ``raw``, ``packet``, ``netlink``, ``vsock`` and other families, ``fast-open``, ``io_uring``, ``call``.
    """
    address: str
    port: int
    name: str
    """The host, the Unix socket (``@``: abstract), the program that listens, or the call."""
    reason: str
    count: int = 1


@dataclass(slots=True)
class Gate:
    """While it is closed, no program in the network may connect or listen."""

    open: bool = True
    refused: int = 0
    """The number of calls that failed because it was closed."""


class Rules(Protocol):
    """Decides about connections and names; called in the broker's thread."""

    async def decide(self, connect: Connect) -> Decision:
        """Decide about ``connect``, within :data:`sluice.runtime.sandbox.network.DECISION_SECONDS`."""

    async def resolve(self, name: str) -> Answer:
        """What the box's resolver answers for ``name`` (lower case, no dot at the end)."""

    def listener(self, address: Address, port: int) -> socket.socket | None:
        """A socket of the machine for a program that listens on this address and port of the box: bound, not yet
        listening, no one else's; the network closes it. None: the port stays in the box. Must be quick.
        """


class Rows(Protocol):
    """Takes reports of what has happened, in the broker's thread. Must not wait, and must bound what it keeps."""

    def opened(self, connection: Connection) -> None:
        """A program has got a connection."""

    def moved(self, connection: Connection, traffic: Traffic) -> None:
        """The connection has carried so much until now."""

    def closed(self, connection: Connection, traffic: Traffic, seconds: float, reason: str) -> None:
        """The connection has ended; ``reason`` is empty if one of its ends closed it."""

    def refused(self, refusal: Refusal) -> None:
        """An attempt to leave the box was refused."""

    def stuck(self, connection: Connection) -> None:
        """The connection cannot be ended, because the job hides its descriptor: end the job's boxes."""
