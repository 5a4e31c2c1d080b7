"""Reports of a network go into the journal, and connections ended by the journal end in the network."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.core.egress_evidence import EgressVerdict
from sluice.runtime.egress import EgressJournal, journal as journal_module
from sluice.runtime.job_network import WouldRefuse
from sluice.runtime.sandbox.network import Connect, Connection, HostAddress, Refusal, Traffic
from sluice.runtime.taskmanager.networks.journal_rows import JournalRows
from sluice.runtime.taskmanager.networks.network_owner import NetworkOwner

PLACE = ipaddress.IPv4Address("127.0.0.1")


class World:
    def __init__(self) -> None:
        self.now = 10.0
        self.killed: list[str] = []
        self.gone = threading.Event()
        self.journal = EgressJournal(clock=lambda: self.now, monotonic=lambda: self.now)

        async def nowhere(_: int) -> tuple[str, ...]:
            return ()

        def kill(reason: str) -> None:
            self.killed.append(reason)
            self.gone.set()

        owner = NetworkOwner("a" * 32, "executor/3", 2, Path("/identity"), nowhere, kill)
        self.rows = JournalRows(self.journal, owner)
        self.rows.attach(self)
        self.open: dict[int, Connection] = {}
        self.calls = 0
        self.ended = threading.Event()
        self.broken = False

    def end(self, wanted: Callable[[Connection], bool], reason: str) -> int:
        self.calls += 1
        if self.broken:
            raise ValueError(reason)
        gone = [each for each in self.open.values() if wanted(each)]
        for each in gone:
            self.close(each, reason)
        if gone:
            self.ended.set()
        return len(gone)

    def connect(self, number: int, name: str | None = "api.example.com", address: str = "198.18.0.1") -> Connection:
        asked = Connect("executor", "java", 7, ipaddress.ip_address(address), 443, name)
        made = Connection(number, asked, HostAddress(PLACE, 1), self.now)
        self.open[number] = made
        self.rows.opened(made)
        return made

    def close(self, connection: Connection, reason: str = "", traffic: Traffic | None = None) -> None:
        self.rows.closed(connection, traffic or Traffic(), 1.0, reason)
        del self.open[connection.id]  # last, because tests wait for it


@pytest.fixture
def world() -> World:
    return World()


def test_a_connection_is_recorded_from_its_start_to_its_end(world: World) -> None:
    made = world.connect(1)
    world.rows.moved(made, Traffic(3, 4))
    (row,) = world.journal.report().rows
    assert (row.host, row.address, row.port, row.process, row.attempt) == (
        "api.example.com", "", 443, "executor/3", 2,
    )  # fmt: skip
    assert (row.bytes_up, row.bytes_down, row.open) == (3, 4, True)
    world.close(made, traffic=Traffic(5, 6))
    (row,) = world.journal.report().rows
    assert (row.bytes_up, row.bytes_down, row.open, row.verdict) == (5, 6, False, EgressVerdict.ALLOWED)


def test_a_connection_to_a_plain_address_is_recorded_by_address(world: World) -> None:
    world.connect(1, None, "2001:db8::7")
    (target,) = world.journal.report().targets
    assert target.authority == "[2001:db8::7]:443"


def test_refusals_keep_their_count_and_protocol(world: World) -> None:
    world.rows.refused(Refusal("executor", "udp", "203.0.113.9", 53, "", "no_route", 17))
    world.rows.refused(Refusal("", "dns", "", 0, "evil.example.com", "unknown_name", 1))
    rows = {row.protocol: row for row in world.journal.report(last=True).rows}
    assert (rows["udp"].count, rows["udp"].target, rows["udp"].reason) == (17, "203.0.113.9:53", "no_route")
    assert (rows["dns"].host, rows["dns"].address) == ("evil.example.com", "")


def test_connections_ended_by_the_journal_are_ended_in_the_network(world: World) -> None:
    for number in range(5):
        world.connect(number)
    stays = world.connect(9, "other.example.com")
    targets = frozenset(each for each in world.journal.report().targets if each.host == "api.example.com")
    assert world.journal.end_targets(targets, "not allowed any more") == 5
    while len(world.open) > 1:
        assert world.ended.wait(20)
    assert list(world.open.values()) == [stays]
    rows = [row for row in world.journal.report(last=True).rows if not row.open]
    assert [row.reason for row in rows] == ["not allowed any more"] * 5


def test_the_process_is_killed_when_its_connections_cannot_be_ended(world: World) -> None:
    world.broken = True
    world.connect(1)
    world.journal.end_all("no answer")
    assert world.gone.wait(20)
    assert world.killed == ["its connections cannot be ended"]


def test_the_process_is_killed_when_it_hides_a_connection(world: World) -> None:
    world.rows.stuck(world.connect(1))
    assert world.killed == ["it hides a connection to api.example.com"]


def test_a_connection_the_policy_would_refuse_is_recorded_with_that_verdict(world: World) -> None:
    asked = Connect("executor", "java", 7, ipaddress.ip_address("198.18.0.1"), 443, "api.example.com")
    world.rows.opened(Connection(1, asked, HostAddress(PLACE, 1, note=WouldRefuse("not_allowed")), world.now))
    (row,) = world.journal.report().rows
    assert (row.verdict, row.reason) == (EgressVerdict.WOULD_REFUSE, "not_allowed")


def test_connections_to_too_many_destinations_are_ended_and_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_EGRESS_TARGETS", 1)
    world.connect(1)
    world.connect(2, "other.example.com")
    assert world.ended.wait(20)
    assert list(world.open) == [1]
    assert "too_many_connections" in {row.reason for row in world.journal.report(last=True).rows}
