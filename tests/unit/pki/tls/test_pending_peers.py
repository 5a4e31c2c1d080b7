"""Who gives way when strangers take all places."""

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


def test_among_equals_the_oldest_goes() -> None:
    pending: PendingPeers[int] = PendingPeers(3)
    gone = [pending.add(number, f"10.0.0.{number}") for number in range(6)]
    assert gone == [None, None, None, 0, 1, 2]


def test_a_place_that_is_left_is_free() -> None:
    pending: PendingPeers[str] = PendingPeers(1)
    assert pending.add("first", "::1") is None
    pending.discard("first")
    pending.discard("first")
    assert pending.add("second", "::1") is None
    assert pending.add("third", "::1") == "second"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4), st.booleans()), max_size=100))
def test_never_more_than_the_limit_and_never_the_newest(steps: list[tuple[int, int, bool]]) -> None:
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
def test_whose_an_address_is(host: str, network: str) -> None:
    assert network_of(host) == network
