"""A minimal client of Sluice's RPC for forbidden requests: msgpack, HTTP/2 and gRPC, on one connection."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

PROTOCOL_VERSION = 4
"""Version of the envelopes; a wrong one would be refused for that alone, so a test compares it with the cluster's."""
PATH = "/sluice.rpc.v1.Rpc/Exchange"
MAX_ANSWER_BYTES = 4 << 20
SECONDS = 10.0
ENDED = "the connection was ended"

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_ACK = 1
_END_HEADERS = 4
_HELLO, _CALL, _REPLY, _FAILURE = 0, 1, 3, 4


class Refused(Exception):
    """The peer ended the connection, or answered with an error: its name."""


def pack(value: Any) -> bytes:  # noqa: ANN401, PLR0911  whatever msgpack knows, a line for each
    """``value`` as msgpack, in the longest forms: they are all valid."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return b"\xd3" + struct.pack(">q", value)
        case str():
            return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
        case bytes():
            return b"\xc6" + struct.pack(">I", len(value)) + value
        case list() | tuple():
            return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
        case dict():
            return b"\xde" + struct.pack(">H", len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())
        case _:
            raise TypeError(type(value).__name__)


_SIZED = {
    0xC4: (1, "bin"), 0xC5: (2, "bin"), 0xC6: (4, "bin"), 0xD9: (1, "str"), 0xDA: (2, "str"), 0xDB: (4, "str"),
    0xDC: (2, "list"), 0xDD: (4, "list"), 0xDE: (2, "dict"), 0xDF: (4, "dict"),
}  # fmt: skip
_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
            0xCA: ">f", 0xCB: ">d"}  # fmt: skip
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes, start: int = 0) -> tuple[Any, int]:
    """The value that begins at ``start``, and where it ends; ValueError for anything else than msgpack."""
    if start >= len(data):
        raise ValueError("msgpack that ends early")
    first = data[start]
    start += 1
    if first < 0x80 or first >= 0xE0:
        return first if first < 0x80 else first - 0x100, start
    if first in _PLAIN:
        return _PLAIN[first], start
    if first in _NUMBERS:
        size = struct.calcsize(_NUMBERS[first])
        return struct.unpack_from(_NUMBERS[first], data, start)[0], start + size
    if first < 0xC0:
        kind = "dict" if first < 0x90 else "list" if first < 0xA0 else "str"
        return _sized(data, start, first & (0x1F if kind == "str" else 0x0F), kind)
    if first not in _SIZED:
        raise ValueError(f"msgpack with {first:#x}")
    width, kind = _SIZED[first]
    return _sized(data, start + width, int.from_bytes(data[start : start + width], "big"), kind)


def _sized(data: bytes, start: int, size: int, kind: str) -> tuple[Any, int]:
    if kind in {"bin", "str"}:
        content = data[start : start + size]
        return content.decode(errors="replace") if kind == "str" else content, start + size
    values = []
    for _ in range(size * 2 if kind == "dict" else size):
        value, start = unpack(data, start)
        values.append(value)
    return dict(zip(values[::2], values[1::2], strict=True)) if kind == "dict" else values, start


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A literal header field, without the table."""
    return b"".join((b"\0", bytes([len(name)]), name.encode(), bytes([len(value)]), value.encode()))


class RpcConnection:
    """One RPC connection on a TLS socket whose handshake is done."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(SECONDS)
        self._input = b""
        self._content = b""
        self._next = 0
        fields = {":method": "POST", ":scheme": "https", ":path": PATH, ":authority": "localhost", "te": "trailers",
                  "content-type": "application/grpc+msgpack"}  # fmt: skip
        headers = b"".join(_literal(name, value) for name, value in fields.items())
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, headers))
        self._send([_HELLO, PROTOCOL_VERSION])

    def call(self, endpoint: str, method: str, arguments: list[Any], token: bytes | None = None) -> Any:  # noqa: ANN401
        """The result; raises :class:`Refused` with the name of the error, or what ended the connection."""
        self._next += 1
        self._send([_CALL, self._next, endpoint, method, token, pack(arguments)])
        deadline = time.monotonic() + SECONDS
        greeted = False
        for envelope in self._envelopes(deadline):
            greeted = True
            if envelope[0] == _REPLY and envelope[1] == self._next:
                return unpack(envelope[2])[0]
            if envelope[0] == _FAILURE and envelope[1] == self._next:
                raise Refused(envelope[2].rpartition(".")[2])
        if greeted:
            raise RuntimeError("the peer speaks RPC, but not as this does")
        raise Refused(ENDED)

    def _send(self, envelope: list[Any]) -> None:
        message = pack([envelope])
        self._socket.sendall(_frame(_DATA, 0, 1, b"\0" + struct.pack(">I", len(message)) + message))

    def _envelopes(self, deadline: float) -> Iterator[list[Any]]:
        while time.monotonic() < deadline and len(self._content) < MAX_ANSWER_BYTES:
            while len(self._content) >= 5:
                size = int.from_bytes(self._content[1:5], "big")
                if len(self._content) < 5 + size:
                    break
                batch, self._content = self._content[5 : 5 + size], self._content[5 + size :]
                yield from unpack(batch)[0]
            if not self._receive():
                return

    def _receive(self) -> bool:
        """Process received data; False at the end of the connection."""
        data = self._socket.recv(1 << 16)
        self._input += data
        while len(self._input) >= 9:
            size = int.from_bytes(self._input[:3], "big")
            if len(self._input) < 9 + size:
                break
            kind, flags, payload = self._input[3], self._input[4], self._input[9 : 9 + size]
            self._input = self._input[9 + size :]
            if kind == _DATA:
                self._content += payload
            elif kind == _SETTINGS and not flags & _ACK:
                self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        return bool(data)
