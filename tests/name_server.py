"""A DNS server on loopback with answers from the test: real UDP, and the parts of RFC 1035 for A, AAAA and TXT."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import struct
from collections.abc import AsyncIterator, Callable

_HEADER = struct.Struct(">HHHHHH")
_ANSWER = struct.Struct(">HHHIH")
_TYPES = {4: 1, 6: 28}
_TXT = 16
_NXDOMAIN = 0x8183
_ANSWERED = 0x8180


class NameServer(asyncio.DatagramProtocol):
    """Answers queries, and records them.

    Attributes:
        names: name -> addresses, or a function that returns them for each query.
        texts: a function that returns the TXT records of a name for each query. A name with records exists.
        asked: the queried names in lower case, once for each query.
    """

    def __init__(self) -> None:
        self.names: dict[str, tuple[str, ...] | Callable[[], tuple[str, ...]]] = {}
        self.texts: Callable[[str], tuple[bytes, ...]] = lambda _: ()
        self.asked: list[str] = []
        self.address = ""
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport
        host, port = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], _HEADER.size
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii"))
            at += 1 + data[at]
        (kind,) = struct.unpack_from(">H", data, at + 1)
        name = ".".join(labels).lower()
        self.asked.append(name)
        known = self.names.get(name)
        addresses = known() if callable(known) else known or ()
        found = [each.packed for each in map(ipaddress.ip_address, addresses) if _TYPES[each.version] == kind]
        texts = self.texts(name)
        if kind == _TXT:
            found = [bytes([len(each)]) + each for each in texts]
        exists = known is not None or bool(texts)
        head = _HEADER.pack(int.from_bytes(data[:2], "big"), _ANSWERED if exists else _NXDOMAIN, 1, len(found), 0, 0)
        records = b"".join(_ANSWER.pack(0xC00C, kind, 1, 0, len(each)) + each for each in found)
        if self._transport is not None:
            self._transport.sendto(head + data[_HEADER.size : at + 5] + records, addr)


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    """Run a server on a free port of 127.0.0.1 within the block."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
