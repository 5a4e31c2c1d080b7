"""Egress of one driver or executor, with a fake relay and a fake policy."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path
from typing import cast

from sluice.core import ANY_PORT, EgressDecision
from sluice.runtime.egress_relay import EgressRelay, RelayFailed, RelayRoute
from sluice.runtime.job_network import RelayedEgress, WouldRefuse
from sluice.runtime.job_network.relayed_egress import ALLOWED_SECONDS, MAX_DECISIONS, REFUSED_SECONDS
from sluice.runtime.sandbox.network import Connect, Decision, HostAddress, Refuse

IDENTITY = Path("/identity")
WANTED = Connect("python", "python", 7, ip_address("127.1.0.1"), 443, "api.example.com")
RELAY = ("127.0.0.1", 40000)


class Relay:
    """A fake relay that opens routes, or fails if told to."""

    def __init__(self) -> None:
        self.opened: list[Path] = []
        self.closed = 0
        self.fails = False

    @contextlib.asynccontextmanager
    async def attempt(self, identity: Path) -> AsyncIterator[RelayRoute]:
        self.opened.append(identity)
        if self.fails:
            raise RelayFailed("no Envoy")
        yield RelayRoute("ab" * 32, lambda: RELAY)
        self.closed += 1


class Policy:
    """A fake policy that always answers with ``decision``."""

    def __init__(self, decision: EgressDecision) -> None:
        self.decision = decision
        self.asked: list[tuple[str, int]] = []

    async def ask(self, host: str, port: int) -> EgressDecision:
        self.asked.append((host, port))
        return self.decision


async def decided(relay: Relay, policy: Policy | None, wanted: Connect = WANTED) -> Decision:
    return await RelayedEgress(cast("EgressRelay", relay), IDENTITY, policy.ask if policy else None)._decide(wanted)


async def test_an_allowed_connection_goes_to_the_relay_with_the_requested_name() -> None:
    relay, policy = Relay(), Policy(EgressDecision(decided=True, allowed=True))
    found = await decided(relay, policy)
    assert isinstance(found, HostAddress)
    assert (str(found.address), found.port, found.recorded) == (*RELAY, True)
    assert b"api.example.com:443" in found.preamble
    assert policy.asked == [("api.example.com", 443)]


async def test_a_connection_that_the_policy_does_not_allow_never_reaches_the_relay() -> None:
    for decision, refusal in (
        (EgressDecision(decided=True), Refuse(errno.ECONNREFUSED, "not_allowed")),
        (EgressDecision(decided=False, allowed=True), Refuse(errno.ENETUNREACH, "not_decided")),
    ):
        relay = Relay()
        assert await decided(relay, Policy(decision)) == refusal
        assert relay.opened == []


async def test_without_a_policy_every_connection_goes_to_the_relay() -> None:
    assert isinstance(await decided(Relay(), None), HostAddress)


async def test_the_route_to_the_relay_is_opened_once_kept_and_closed() -> None:
    relay = Relay()
    way = RelayedEgress(cast("EgressRelay", relay), IDENTITY)
    for _ in range(3):
        assert isinstance(await way._decide(WANTED), HostAddress)
    assert relay.opened == [IDENTITY]
    await way._close()
    assert relay.closed == 1


async def test_connections_are_refused_without_a_relay_until_one_is_available() -> None:
    relay = Relay()
    relay.fails = True
    way = RelayedEgress(cast("EgressRelay", relay), IDENTITY)
    assert await way._decide(WANTED) == Refuse(errno.ENETUNREACH, "no_relay")
    relay.fails = False
    assert isinstance(await way._decide(WANTED), HostAddress)
    await way._close()


async def test_a_policy_that_only_records_lets_connections_through_and_marks_refusals() -> None:
    for decision, note in (
        (EgressDecision(decided=True, allowed=False), WouldRefuse("not_allowed")),
        (EgressDecision(decided=False), WouldRefuse("not_decided")),
        (EgressDecision(decided=True, allowed=True), "api.example.com"),
    ):
        relayed = RelayedEgress(cast("EgressRelay", Relay()), IDENTITY, Policy(decision).ask, enforce=False)
        found = await relayed._decide(WANTED)
        assert isinstance(found, HostAddress)
        assert found.note == note


async def test_a_name_is_resolved_if_the_policy_allows_any_port_of_it() -> None:
    for decision, answer in (
        (EgressDecision(decided=True, allowed=True), True),
        (EgressDecision(decided=True), False),
        (EgressDecision(decided=False, allowed=True), None),
    ):
        policy = Policy(decision)
        relayed = RelayedEgress(cast("EgressRelay", Relay()), IDENTITY, policy.ask)
        assert await relayed.resolve("api.example.com") is answer
        assert policy.asked == [("api.example.com", ANY_PORT)]
        only_recorded = RelayedEgress(cast("EgressRelay", Relay()), IDENTITY, policy.ask, enforce=False)
        assert await only_recorded.resolve("api.example.com") is True


async def test_a_decision_about_a_name_is_cached_for_a_moment_and_a_missing_one_is_not() -> None:
    now = 0.0
    policy = Policy(EgressDecision(decided=True, allowed=True))
    relayed = RelayedEgress(cast("EgressRelay", Relay()), IDENTITY, policy.ask, clock=lambda: now)
    for decision, seconds in (
        (EgressDecision(decided=True, allowed=True), ALLOWED_SECONDS),
        (EgressDecision(decided=True), REFUSED_SECONDS),
        (EgressDecision(decided=False), 0.0),
    ):
        policy.decision, policy.asked = decision, []
        await relayed.resolve("api.example.com")
        await relayed.resolve("api.example.com")
        assert len(policy.asked) == (1 if seconds else 2)
        now += seconds
    for number in range(2 * MAX_DECISIONS):
        await relayed.resolve(f"{number}.example.com")
    policy.decision = EgressDecision(decided=True)
    for number in range(2 * MAX_DECISIONS):
        await relayed.resolve(f"{number}.example.com")
    assert len(relayed._decisions) == MAX_DECISIONS


async def test_a_job_beyond_its_limits_is_refused_without_asking_policy_or_relay() -> None:
    relay, policy = Relay(), Policy(EgressDecision(decided=True, allowed=True))
    too_many = "too_many_a_second"
    way = RelayedEgress(
        cast("EgressRelay", relay), IDENTITY, policy.ask, limit=lambda: too_many, limit_names=lambda: too_many
    )
    assert await way._decide(WANTED) == Refuse(errno.ENOBUFS, "too_many_a_second")
    assert await way.resolve("api.example.com") is None
    assert (relay.opened, policy.asked) == ([], [])
    too_many = ""
    assert isinstance(await way._decide(WANTED), HostAddress)
    assert await way.resolve("api.example.com") is True
    too_many = "too_many_a_second"
    assert await way.resolve("api.example.com") is True, "it has been asked already"
    await way._close()
