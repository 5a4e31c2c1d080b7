"""Which of several addresses Envoy is given."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, ip_address

import pytest

from sluice.core import Address
from sluice.gateway.egress.reachable import KEPT_SECONDS, MAX_TRIED, Reachable

DEAD, SILENT, GOOD, OTHER = (ip_address(f"192.0.2.{number}") for number in (1, 2, 3, 4))


class World:
    """Machines that do or do not answer, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tried: list[Address] = []
        self.good = {GOOD, OTHER}
        self.reachable = Reachable(self.probe, clock=lambda: self.now)

    async def probe(self, address: Address, port: int) -> None:
        self.tried.append(address)
        if address == SILENT:
            await asyncio.Event().wait()
        if address not in self.good:
            raise ConnectionRefusedError(address, port)


@pytest.mark.parametrize(
    ("addresses", "first"),
    [
        pytest.param((GOOD, OTHER), GOOD, id="the first answers"),
        pytest.param((DEAD, GOOD), GOOD, id="the first refuses"),
        pytest.param((SILENT, GOOD, OTHER), GOOD, id="the first says nothing"),
        pytest.param((SILENT, DEAD, GOOD), GOOD, id="two do not answer"),
        pytest.param((DEAD, DEAD), DEAD, id="none answers"),
    ],
)
async def test_the_first_reachable_address_is_chosen(addresses: tuple[Address, ...], first: Address) -> None:
    assert await World().reachable.first(addresses, 443) == first


async def test_a_single_address_is_not_tried() -> None:
    world = World()
    assert await world.reachable.first((DEAD,), 443) == DEAD
    assert world.tried == []


async def test_probe_results_are_cached_briefly_and_concurrent_probes_are_shared() -> None:
    world = World()
    found = await asyncio.gather(*(world.reachable.first((DEAD, GOOD), 443) for _ in range(50)))
    assert set(found) == {GOOD}
    assert world.tried == [DEAD, GOOD]
    assert await world.reachable.first((DEAD, GOOD), 444) == GOOD
    world.good = {DEAD}
    assert await world.reachable.first((DEAD, GOOD), 443) == GOOD
    world.now += KEPT_SECONDS
    assert await world.reachable.first((DEAD, GOOD), 443) == DEAD


async def test_at_most_a_few_addresses_are_probed() -> None:
    world = World()
    many = tuple(IPv4Address("203.0.113.0") + number for number in range(200))
    assert await world.reachable.first(many, 443) == many[0]
    assert world.tried == list(many[:MAX_TRIED])


async def test_an_unreachable_address_is_skipped_with_real_sockets() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        nobody, somebody = ip_address("127.0.83.1"), ip_address("127.0.0.1")
        assert await Reachable().first((nobody, somebody), port) == somebody
