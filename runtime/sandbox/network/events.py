"""The decisions that the network of a box asks for, and the events that it reports."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Connect:
    """A program in a box requests a TCP connection."""

    box: str
    """The name of the box, chosen by its creator: ``driver``, ``python``, ``executor``."""
    process: str
    """The process name, at most 15 characters. The program chooses it, so it is not trustworthy."""
    pid: int
    address: Address
    """An IPv4-mapped IPv6 address appears as IPv4, and the unspecified address as loopback."""
    port: int
    name: str | None = None
    """The host name for which the resolver returned this address."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Connect within the box's private network."""


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Give the program a socket of the machine's network that is connected to ``address``."""

    address: Address
    port: int
    preamble: bytes = b""
    """Bytes to send before the program gets the connection, at most :data:`MAX_PREAMBLE_BYTES`."""
    recorded: bool = True
    """Whether to report the connection to :class:`ConnectionObserver`."""
    note: object = None
    """Data that :class:`Rules` attaches for its own later use."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Let the call fail with ``error`` (of :mod:`errno`)."""

    error: int
    reason: str
    """A short code for the row, such as ``not_allowed``."""


Decision = Inside | HostAddress | Refuse
Answer = bool | Sequence[Address] | None
"""The answer for a host name. True: it gets addresses valid only in this network; False: it does not exist; a sequence:
its real addresses; None: undecided for now.
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
    """Bytes carried by a connection: sent and acknowledged by the peer, and received from it."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused attempt to leave the box; it has occurred ``count`` times since its last row."""

    box: str
    """The box; empty: any box of this network."""
    protocol: str
    """``tcp``, ``udp``, ``icmp``, ``dns``, ``ip-<number>``, ``unix``, ``listen``; for calls that are always refused:
    ``raw``, ``packet``, ``netlink``, ``vsock`` and other families, ``fast-open``, ``io_uring``, ``call``.
    """
    address: str
    port: int
    name: str
    """The host, the Unix socket (``@``: abstract), the listening program, or the call."""
    reason: str
    count: int = 1


@dataclass(slots=True)
class Gate:
    """Blocks ``connect`` and ``listen`` of all programs in the network while it is closed."""

    open: bool = True
    refused: int = 0
    """The number of calls that failed because the gate was closed."""


class Rules(Protocol):
    """Decides about connections and host names; called in the broker's thread."""

    async def decide(self, connect: Connect) -> Decision:
        """Decide about ``connect``, within :data:`sluice.runtime.sandbox.network.DECISION_SECONDS`."""

    async def resolve(self, name: str) -> Answer:
        """The answer of the box's resolver for ``name`` (lower case, no trailing dot)."""

    def listener(self, address: Address, port: int) -> socket.socket | None:
        """The machine's socket for a program that listens on this address and port of the box; None: the port stays
        in the box. The socket must be bound, not yet listening and not used elsewhere; the network closes it. Must be
        quick.
        """


class ConnectionObserver(Protocol):
    """Receives reports in the broker's thread. Must not block, and must bound the data that it keeps."""

    def opened(self, connection: Connection) -> None:
        """A program was given a connection."""

    def moved(self, connection: Connection, traffic: Traffic) -> None:
        """The connection has carried ``traffic`` in total so far."""

    def closed(self, connection: Connection, traffic: Traffic, seconds: float, reason: str) -> None:
        """The connection has ended after ``seconds``; ``reason`` is empty if one of its ends closed it."""

    def refused(self, refusal: Refusal) -> None:
        """An attempt to leave the box was refused."""

    def stuck(self, connection: Connection) -> None:
        """The connection cannot be ended, because the job hides its descriptor. The receiver must kill the boxes."""
