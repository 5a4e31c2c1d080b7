"""A TCP connection that is read record by record, with one deadline for the whole exchange."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from sluice.audit.errors import WireError
from sluice.audit.wire.codec import number, vector
from sluice.audit.wire.numbers import ALERTS, Content, Message, name_of

MAX_RECORD_BYTES = (1 << 14) + 256
MAX_HANDSHAKE_BYTES = 1 << 18
"""Longest handshake message that is read, in bytes."""
ALERT_BYTES = 2
_RECORD_TYPES = frozenset(int(kind) for kind in Content)


@dataclass(frozen=True, slots=True)
class Alert:
    """A TLS alert."""

    description: int

    def __str__(self) -> str:
        return f"alert {name_of(ALERTS, self.description)}"


@dataclass(frozen=True, slots=True)
class Closed:
    """The peer ended the connection without an alert."""

    reset: bool

    def __str__(self) -> str:
        return "connection reset" if self.reset else "connection closed"


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing came in time; the connection is still open."""

    seconds: float

    def __str__(self) -> str:
        return f"connection still open after {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The peer ended a handshake below TLS 1.3; ``reason`` in OpenSSL's words."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class NotTls:
    """What came is not a TLS record."""

    data: bytes

    def __str__(self) -> str:
        return f"an answer that is not TLS: {printable(self.data)}"


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it came."""

    kind: int
    header: bytes
    data: bytes


Ending = Alert | Closed | Silent | Refusal | NotTls


class ConnectionEnded(WireError):
    """The peer ended the exchange, or stopped answering; ``ending`` says how."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(str(ending))
        self.ending = ending


class WireConnection:
    """A connection to ``address``; every read raises :class:`ConnectionEnded` at the deadline at the latest."""

    def __init__(self, address: tuple[str, int], timeout: float) -> None:
        self._timeout = timeout
        self._started = time.monotonic()
        self._deadline = self._started + timeout
        self.socket = socket.create_connection(address, timeout=timeout)
        self._buffer = b""

    def set_timeout(self, seconds: float) -> None:
        """A new deadline, from now."""
        self._timeout = seconds
        self._started = time.monotonic()
        self._deadline = self._started + seconds

    def send(self, data: bytes) -> None:
        """Send; a peer that has closed already is noticed by the next read."""
        with contextlib.suppress(OSError):
            self.socket.settimeout(max(0.001, self._deadline - time.monotonic()))
            self.socket.sendall(data)

    def send_record(self, kind: int, data: bytes, version: int = 0x0301) -> None:
        """Send ``data`` in clear text records."""
        for start in range(0, len(data), 1 << 14):
            self.send(number(kind, 1) + number(version, 2) + vector(data[start : start + (1 << 14)], 2))

    def read_record(self) -> Record:
        """The next record."""
        header = self._take(5)
        kind, version, length = header[0], header[1:3], int.from_bytes(header[3:5], "big")
        if kind not in _RECORD_TYPES or version[0] != 3 or length > MAX_RECORD_BYTES:
            raise ConnectionEnded(NotTls(header + self._buffer[:200]))
        return Record(kind, header, self._take(length))

    def close(self) -> None:
        """Close at once."""
        self.socket.close()

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._buffer += self._receive()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _receive(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ConnectionEnded(self._unfinished(Silent(self._timeout)))
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            raise ConnectionEnded(self._unfinished(Silent(self._timeout))) from None
        except OSError:
            raise ConnectionEnded(self._unfinished(Closed(reset=True))) from None
        if not data:
            raise ConnectionEnded(self._unfinished(Closed(reset=False)))
        return data

    def _unfinished(self, ending: Ending) -> Ending:
        """Decide on an incomplete record: data that does not begin like a record is another protocol."""
        if self._buffer and self._buffer[0] not in _RECORD_TYPES:
            return NotTls(self._buffer[:200])
        return ending

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MessageReader:
    """Puts handshake messages together from records in clear text."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """The messages complete by now: type, body, and the whole with its header."""
        self._data += data
        while len(self._data) >= 4:
            size = int.from_bytes(self._data[1:4], "big")
            if size > MAX_HANDSHAKE_BYTES:
                raise WireError(f"a handshake message of {size} bytes")
            if len(self._data) < 4 + size:
                return
            whole, self._data = self._data[: 4 + size], self._data[4 + size :]
            yield whole[0], whole[4:], whole


def alert_of(data: bytes) -> Alert:
    """The content of an alert record."""
    if len(data) != ALERT_BYTES:
        raise WireError(f"an alert of {len(data)} bytes")
    return Alert(data[1])


def printable(data: bytes, limit: int = 80) -> str:
    """Data of a peer for a report: bounded and without control characters."""
    text = data[:limit].decode("latin-1")
    return repr("".join(character if character.isprintable() else "." for character in text))


def message_name(kind: int) -> str:
    """The name of a handshake message."""
    return Message(kind).name.lower() if kind in {int(each) for each in Message} else f"message {kind}"
