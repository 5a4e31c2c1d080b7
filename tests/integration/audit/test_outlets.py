"""A job's ways out succeed against reachable outlets: only then does a refusal prove anything."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from sluice.audit.insider import Outlets, Place, World, outlets
from sluice.audit.insider.outside import Seen, judge
from sluice.audit.insider.payload import ATTEMPTS, Outcome, load
from sluice.audit.insider.payload.bounded import tried
from sluice.audit.insider.payload.leaving import GREETING, mark
from sluice.audit.insider.results import Row
from sluice.audit.model import Outcome as Verdict

NONCE = "0123456789abcdef"
load()
TO_OUTLETS = [f"EGR-{number:02}" for number in range(1, 21)]
"""Those whose way leads to an outlet; the one behind a proxy comes after them."""
KERNEL_MAY_LACK = {"EGR-11", "EGR-12", "EGR-13", "EGR-14", "EGR-15"}
"""Races, multipath TCP and TCP Fast Open, which machines may have turned off."""


@pytest.fixture
def put_out() -> Iterator[Outlets]:
    with outlets(NONCE) as made:
        yield made


@pytest.mark.parametrize("id_", [each for each in TO_OUTLETS if each not in KERNEL_MAY_LACK])
def test_an_egress_attempt_reaches_its_outlet_when_nothing_blocks_it(put_out: Outlets, id_: str) -> None:
    result = tried(ATTEMPTS[id_], World(nonce=NONCE, targets=put_out.targets))
    assert result.outcome is Outcome.REACHED, result
    assert put_out.heard == {(id_, Place.DRIVER)}


@pytest.mark.parametrize("id_", sorted(KERNEL_MAY_LACK))
def test_an_egress_attempt_that_the_kernel_may_not_support_is_still_tried(put_out: Outlets, id_: str) -> None:
    result = tried(ATTEMPTS[id_], World(nonce=NONCE, targets=put_out.targets))
    assert result.outcome is not Outcome.UNTRIED, result


@pytest.mark.parametrize("id_", TO_OUTLETS)
def test_an_egress_attempt_without_a_target_counts_as_untried(id_: str) -> None:
    assert tried(ATTEMPTS[id_], World(nonce=NONCE)).outcome is Outcome.UNTRIED


def test_an_unanswered_egress_attempt_is_judged_by_what_the_outlets_received(put_out: Outlets) -> None:
    (udp,) = [each for each in put_out.targets if each.name == "udp4"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.sendto(mark(World(nonce=NONCE, place=Place.UDF), "EGR-16"), udp.address)
        assert client.recv(99).startswith(GREETING)
    row = Row(id="EGR-16", place=Place.UDF, outcome=Outcome.PLANTED, done="sent", seen="no answer", seconds=0.1)
    assert judge(row, Seen(heard=put_out.marks)).outcome is Verdict.FINDING
    elsewhere = Row(id="EGR-17", place=Place.UDF, outcome=Outcome.PLANTED, done="sent", seen="no answer", seconds=0.1)
    assert judge(elsewhere, Seen(heard=put_out.marks)).outcome is Verdict.PASSED
    assert judge(elsewhere, Seen()).outcome is Verdict.NOT_EXAMINED


def test_outlets_record_nothing_sent_by_strangers(put_out: Outlets) -> None:
    for text in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"0" * 5000,
        f"{NONCE} EGR-99 nowhere\n".encode(),
        b"x EGR-01 driver\n",
    ):
        for target in put_out.targets:
            if target.name.startswith("tcp"):
                with contextlib.suppress(OSError), socket.create_connection(target.address, 20) as client:
                    client.sendall(text)
    assert put_out.heard == set()
    assert put_out.marks == frozenset()
    assert Outlets(NONCE).marks is None
