"""Rows about packets: what the packet monitor reports, and how equal rows are combined."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.runtime.sandbox.network import ConnectionObserver, Refusal
from sluice.runtime.sandbox.network.names.names import Names
from sluice.runtime.sandbox.network.packet_monitor import refusal_of
from sluice.runtime.sandbox.network.refusals import (
    LOOK_SECONDS,
    MAX_KINDS,
    MAX_PROTOCOLS,
    NEW_KINDS_A_SECOND,
    OTHERS,
    Refusals,
)


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
def test_a_refused_packet_is_recorded_with_protocol_address_and_port(
    packet: bytes, wanted: tuple[str, str, int]
) -> None:
    row = refusal_of(packet, Names())

    assert row is not None
    assert (row.protocol, row.address, row.port) == wanted


def test_a_refused_packet_to_a_virtual_address_is_recorded_with_its_name() -> None:
    names = Names()
    addresses = names.addresses("api.example.com")
    assert addresses is not None

    row = refusal_of(_packet(17, str(addresses[0]), PORTS), names)
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
def test_packets_of_the_kernel_and_malformed_packets_are_not_recorded(packet: bytes) -> None:
    assert refusal_of(packet, Names()) is None


class Told:
    """Refusals with the reports they have sent, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[Refusal] = []
        observer = cast("ConnectionObserver", SimpleNamespace(refused=self.heard.append))
        self.refusals = Refusals(observer, clock=lambda: self.now)

    def passes(self, seconds: float) -> list[Refusal]:
        """Advance the clock in steps of ``LOOK_SECONDS`` and return the refusals reported meanwhile."""
        before = len(self.heard)
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            self.refusals.look()
        return self.heard[before:]


REFUSED = Refusal("driver", "tcp", "192.0.2.1", 80, "", "not_allowed")


async def test_the_first_refusal_of_a_kind_is_reported_at_once_and_the_rest_are_counted() -> None:
    told = Told()
    for _ in range(1000):
        told.refusals.add(REFUSED)
    assert told.heard == [REFUSED]

    assert told.passes(1) == [replace(REFUSED, count=999)]
    assert told.passes(600) == []
    told.refusals.add(REFUSED)
    assert told.heard[-1] == REFUSED


async def test_repeated_refusals_over_hours_are_reported_about_once_a_minute() -> None:
    told = Told()
    tries = 0
    for _ in range(4 * 3600):
        told.refusals.add(REFUSED)
        told.passes(LOOK_SECONDS)
        tries += 1
    assert len(told.heard) <= 60 + 8
    told.refusals.flush()
    assert sum(each.count for each in told.heard) == tries


async def test_refusals_of_ever_new_kinds_are_gathered_into_few_rows_and_all_counted() -> None:
    told = Told()
    tries = 0
    for second in range(600):
        for index in range(100):
            told.refusals.add(Refusal("", "dns", "", 53, f"{second}.{index}.tunnel.example", "not_allowed"))
            told.refusals.add(Refusal("", f"family-{second}", "", 0, f"socket({index}, {second})", "call_refused"))
            tries += 2
        told.passes(1)
    assert len(told.heard) <= MAX_KINDS + 600 * NEW_KINDS_A_SECOND + (MAX_PROTOCOLS + 1) * 20
    assert len({each.protocol for each in told.heard if each.reason == OTHERS}) <= MAX_PROTOCOLS + 1
    told.refusals.flush()
    assert sum(each.count for each in told.heard) == tries
