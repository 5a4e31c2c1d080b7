"""Rows: what the witness tells of packets, and how equal rows are gathered."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.runtime.sandbox.network import Refusal, Rows
from sluice.runtime.sandbox.network.names import Names
from sluice.runtime.sandbox.network.refusals import MAX_KINDS, OTHERS, Refusals
from sluice.runtime.sandbox.network.witness import told


def _packet(protocol: int, to: str, payload: bytes) -> bytes:
    if ":" in to:
        head = struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + bytes(16)
        return head + socket.inet_pton(socket.AF_INET6, to) + payload
    return struct.pack("!BBHIBBH4s", 0x45, 0, 0, 0, 64, protocol, 0, bytes(4)) + socket.inet_aton(to) + payload


PORTS = struct.pack("!HHHH", 40000, 53, 8, 0)


@pytest.mark.parametrize(
    ("packet", "wanted"),
    [
        (_packet(17, "192.0.2.1", PORTS), ("udp", "192.0.2.1", 53)),
        (_packet(17, "2001:db8::1", PORTS), ("udp", "2001:db8::1", 53)),
        (_packet(1, "192.0.2.1", b"\x08\0\0\0"), ("icmp", "192.0.2.1", 0)),
        (_packet(58, "2001:db8::1", b"\x80\0\0\0"), ("icmp", "2001:db8::1", 0)),
        (_packet(132, "192.0.2.1", PORTS), ("ip-132", "192.0.2.1", 53)),
        (_packet(47, "192.0.2.1", b""), ("ip-47", "192.0.2.1", 0)),
        (_packet(17, "192.0.2.1", b"\0"), ("udp", "192.0.2.1", 0)),
    ],
)
def test_a_packet_is_told_by_where_it_was_to_go(packet: bytes, wanted: tuple[str, str, int]) -> None:
    row = told(packet, Names())

    assert row is not None
    assert (row.protocol, row.address, row.port) == wanted


def test_a_packet_to_an_address_that_stands_for_a_name_has_it() -> None:
    names = Names()
    addresses = names.addresses("api.example.com")
    assert addresses is not None

    row = told(_packet(17, str(addresses[0]), PORTS), names)
    assert row is not None
    assert row.name == "api.example.com"


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\x45",
        b"\x60" + bytes(20),
        bytes(64),
        _packet(1, "192.0.2.1", b"\x03\x03"),
        _packet(58, "2001:db8::1", b"\x01\x04"),
    ],
)
def test_the_kernels_own_packets_and_broken_ones_are_not_told(packet: bytes) -> None:
    assert told(packet, Names()) is None


async def test_equal_rows_of_a_moment_are_one_and_kinds_are_bounded() -> None:
    heard: list[Refusal] = []
    refusals = Refusals(cast("Rows", SimpleNamespace(refused=heard.append)))
    for index in range(1000):
        refusals.add(Refusal("driver", "tcp", "192.0.2.1", 80, "", "not_allowed"))
        refusals.add(Refusal("", "dns", "", 53, f"{index}.tunnel.example", "not_allowed"))
    await asyncio.sleep(0)
    refusals.flush()

    assert len(heard) == MAX_KINDS + 1
    assert sum(each.count for each in heard) == 2000
    assert next(each.count for each in heard if each.protocol == "tcp") == 1000
    assert next(each.count for each in heard if each.reason == OTHERS) == 1000 - MAX_KINDS + 1
