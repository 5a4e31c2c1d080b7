"""The listeners of its own job that a sandbox may connect to, with a clock that stands still."""

from __future__ import annotations

import ipaddress
from ipaddress import ip_address

from sluice.core import ANY_PORT
from sluice.runtime.job_network import KnownListeners
from sluice.runtime.job_network.known_listeners import FRESH_SECONDS, MAX_PORTS, NOBODY_SECONDS, STALE_SECONDS
from sluice.runtime.rpc import PeerUnreachable

HERE = ip_address("127.0.0.1")


class World:
    """The JobMaster's answers, the addresses of host names, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.hosts: dict[int, tuple[str, ...]] = {}
        self.names: dict[str, str] = {}
        self.asked: list[int] = []
        self.away = False
        self.known = KnownListeners(self.ask, resolve=self.resolve, clock=lambda: self.now)

    async def ask(self, port: int) -> tuple[str, ...]:
        self.asked.append(port)
        if self.away:
            raise PeerUnreachable("gone")
        return self.hosts.get(port, ())

    async def resolve(self, host: str) -> frozenset[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        if host not in self.names:
            raise OSError("no such host")
        return frozenset({ip_address(self.names[host])})


async def test_only_addresses_and_ports_where_the_job_listens_are_found() -> None:
    world = World()
    world.hosts[40000] = ("127.0.0.1",)
    assert await world.known.find(HERE, 40000) == HERE
    assert await world.known.find(ip_address("127.0.0.2"), 40000) is None
    assert await world.known.find(HERE, 40001) is None


async def test_a_host_is_known_by_its_name_and_by_the_address_of_the_name() -> None:
    world = World()
    world.hosts[7338] = ("Worker-1", "worker-2")
    world.names = {"worker-1": "10.0.0.1", "other": "10.0.0.9"}
    assert await world.known.find("worker-1", 7338) == ip_address("10.0.0.1")
    assert await world.known.find(ip_address("10.0.0.1"), 7338) == ip_address("10.0.0.1")
    assert await world.known.find("other", 7338) is None
    assert await world.known.find("worker-2", 7338) is None, "it has no address"
    assert await world.known.find(ip_address("10.0.0.9"), 7338) is None


async def test_an_answer_about_a_port_is_cached_for_a_moment() -> None:
    world = World()
    world.hosts[40000] = ("127.0.0.1",)
    for _ in range(3):
        assert await world.known.find(HERE, 40000) == HERE
        assert await world.known.find(HERE, 40001) is None
    assert world.asked == [40000, 40001]
    world.now += NOBODY_SECONDS
    world.hosts[40001] = ("127.0.0.1",)
    assert await world.known.find(HERE, 40001) == HERE
    world.now += FRESH_SECONDS
    world.hosts.clear()
    assert await world.known.find(HERE, 40000) is None, "another job may have the port now"


async def test_known_listeners_are_used_for_a_while_without_a_leader() -> None:
    world = World()
    world.hosts[40000] = ("127.0.0.1",)
    assert await world.known.find(HERE, 40000) == HERE
    world.now += FRESH_SECONDS
    world.away = True
    assert await world.known.find(HERE, 40000) == HERE
    assert await world.known.find(HERE, 40001) is None, "nobody has said that it listens"
    world.now += STALE_SECONDS
    assert await world.known.find(HERE, 40000) is None


async def test_the_number_of_remembered_ports_is_bounded() -> None:
    world = World()
    for port in range(1, MAX_PORTS + 100):
        assert await world.known.find(HERE, port) is None
    assert len(world.known._answers) == MAX_PORTS


async def test_the_hosts_of_a_job_are_known_by_name_and_a_new_one_is_found_soon() -> None:
    world = World()
    world.hosts[ANY_PORT] = ("Worker-1",)
    assert await world.known.has_host("worker-1")
    assert not await world.known.has_host("worker-2")
    world.hosts[ANY_PORT] = ("worker-1", "worker-2")
    world.now += NOBODY_SECONDS
    assert await world.known.has_host("worker-2")
    world.away = True
    world.now += FRESH_SECONDS
    assert await world.known.has_host("worker-2"), "nobody answers: what was known serves"
    world.now += STALE_SECONDS
    assert not await world.known.has_host("worker-2")
