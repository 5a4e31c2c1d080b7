"""Which pending peer is displaced when unauthenticated peers take all places."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.pki.tls.pending_peers import PendingPeers, network_of


def test_a_flood_displaces_itself() -> None:
    pending: PendingPeers[str] = PendingPeers(4)
    assert pending.add("honest", "10.0.0.1") is None
    for number in range(3):
        assert pending.add(f"flood {number}", "10.0.0.66") is None
    for number in range(3, 100):
        assert pending.add(f"flood {number}", "10.0.0.66") == f"flood {number - 3}"
    assert len(pending) == 4


def test_the_oldest_pending_peer_is_displaced_when_all_addresses_hold_equally_many() -> None:
    pending: PendingPeers[int] = PendingPeers(3)
    gone = [pending.add(number, f"10.0.0.{number}") for number in range(6)]
    assert gone == [None, None, None, 0, 1, 2]


def test_the_place_of_a_discarded_peer_can_be_taken_again() -> None:
    pending: PendingPeers[str] = PendingPeers(1)
    assert pending.add("first", "::1") is None
    pending.discard("first")
    pending.discard("first")
    assert pending.add("second", "::1") is None
    assert pending.add("third", "::1") == "second"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4), st.booleans()), max_size=100))
def test_pending_peers_never_exceed_the_limit_and_the_newest_is_never_displaced(
    steps: list[tuple[int, int, bool]],
) -> None:
    pending: PendingPeers[tuple[int, int]] = PendingPeers(5)
    model: set[tuple[int, int]] = set()
    for turn, (number, host, leaves) in enumerate(steps):
        if leaves and model:
            left = sorted(model)[number % len(model)]
            model.discard(left)
            pending.discard(left)
            continue
        newest = (turn, number)
        model.add(newest)
        gone = pending.add(newest, f"192.0.2.{host}")
        assert gone != newest
        model -= {gone} if gone is not None else set()
        assert set(pending) == model
        assert len(pending) <= 5


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("somewhere", "somewhere"),
    ],
)
def test_addresses_are_grouped_by_ipv4_address_or_ipv6_64_network(host: str, network: str) -> None:
    assert network_of(host) == network
