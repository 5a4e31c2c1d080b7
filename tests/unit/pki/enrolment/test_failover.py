"""Which authority is asked, and when the client moves on to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sluice.pki.ca.address import CaAddress
from sluice.pki.enrolment.failover import AVOID_SECONDS, MAX_TRIES, Failover
from sluice.pki.errors import CaUnavailable, EnrolmentRefused, LedgerError, RateLimited


def at(port: int) -> CaAddress:
    return CaAddress(mutual=("127.0.0.1", port), enrolment=("127.0.0.1", port + 1))


FIRST, SECOND, THIRD = at(1), at(3), at(5)


class World:
    """Authorities, some of which do not answer, and a record of those that were asked."""

    def __init__(self, *known: CaAddress) -> None:
        self.known = list(known)
        self.errors: dict[CaAddress, Exception] = {}
        self.asked: list[CaAddress] = []
        self.now = 1000.0
        self.clients = Failover(lambda: self.known, clock=lambda: self.now)

    def ask(self, address: CaAddress) -> CaAddress:
        self.asked.append(address)
        if (error := self.errors.get(address)) is not None:
            raise error
        return address

    def blocking(self) -> CaAddress:
        """Ask with a blocking call; return the authority that answered."""
        return self.clients.call(self.ask)

    def awaited(self) -> CaAddress:
        """Ask in an event loop; return the authority that answered."""

        async def ask(address: CaAddress) -> CaAddress:
            return self.ask(address)

        return asyncio.run(self.clients.ask(ask))


WAYS = pytest.mark.parametrize("way", [World.blocking, World.awaited], ids=["blocking", "awaited"])
Way = Callable[[World], CaAddress]


@WAYS
def test_only_the_preferred_authority_is_asked_while_it_answers(way: Way) -> None:
    world = World(FIRST, SECOND)
    assert [way(world) for _ in range(3)] == [FIRST] * 3
    assert world.asked == [FIRST] * 3


@WAYS
@pytest.mark.parametrize(
    "error", [CaUnavailable("no answer"), LedgerError("no space")], ids=["silent", "cannot record"]
)
def test_a_failed_authority_is_avoided_for_a_while(way: Way, error: Exception) -> None:
    world = World(FIRST, SECOND)
    world.errors[FIRST] = error
    assert way(world) == SECOND
    assert way(world) == SECOND
    assert world.asked == [FIRST, SECOND, SECOND]
    world.errors.clear()
    world.now += AVOID_SECONDS + 1
    assert way(world) == FIRST


@WAYS
@pytest.mark.parametrize("error", [EnrolmentRefused("no"), RateLimited("later", 1.0), ValueError("a bug")])
def test_a_refused_request_is_not_sent_to_another_authority(way: Way, error: Exception) -> None:
    world = World(FIRST, SECOND)
    world.errors[FIRST] = error
    with pytest.raises(type(error)):
        way(world)
    assert world.asked == [FIRST]


@WAYS
def test_each_authority_is_asked_once_when_none_answers(way: Way) -> None:
    world = World(FIRST, SECOND, THIRD)
    world.errors = {each: CaUnavailable(f"no answer of {each.mutual[1]}") for each in world.known}
    with pytest.raises(CaUnavailable, match="none of 3 authorities could answer; the last one: no answer of 5"):
        way(world)
    assert world.asked == [FIRST, SECOND, THIRD]


@WAYS
def test_a_single_authority_fails_with_its_own_error(way: Way) -> None:
    world = World(FIRST)
    world.errors[FIRST] = LedgerError("no space")
    with pytest.raises(LedgerError, match="no space"):
        way(world)


@WAYS
def test_an_authority_that_restarted_at_a_new_address_is_asked_there(way: Way) -> None:
    world = World(FIRST, SECOND)
    world.errors = {FIRST: CaUnavailable("killed"), SECOND: CaUnavailable("killed before")}
    ask = world.ask

    def while_it_restarts(address: CaAddress) -> CaAddress:
        world.known = [FIRST, THIRD]
        return ask(address)

    world.ask = while_it_restarts  # type: ignore[method-assign]
    assert way(world) == THIRD
    assert world.asked == [FIRST, THIRD]


@WAYS
def test_the_number_of_tries_is_bounded_when_addresses_keep_changing(way: Way) -> None:
    world = World(FIRST)
    ports = iter(range(10, 10_000))

    def renamed(address: CaAddress) -> CaAddress:
        world.asked.append(address)
        world.known = [at(next(ports))]
        raise CaUnavailable("gone")

    world.ask = renamed  # type: ignore[method-assign]
    with pytest.raises(CaUnavailable):
        way(world)
    assert len(world.asked) == MAX_TRIES


@WAYS
def test_a_request_without_any_known_authority_fails(way: Way) -> None:
    with pytest.raises(CaUnavailable, match="no online authority is known"):
        way(World())
