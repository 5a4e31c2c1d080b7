"""Every egress attempt of the insider audit, from a box with its own network.

No attempt gets out, and each leaves a row. Without a box the same attempts succeed
(``tests/integration/audit/test_outlets.py``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sluice.audit.insider.payload
from sluice.audit.insider import Outlets, Place, World, canaries, outlets
from sluice.audit.insider.payload import ATTEMPTS, TARGETS, encode, load
from sluice.runtime.sandbox.network import Answer

from .conftest import Networked, until

NONCE = "fedcba9876543210"
PACKAGE = "insider_payload"
PROGRAM = f"""
import sys
sys.path.insert(0, ".")
from {PACKAGE}.attempt import ATTEMPTS, Place
from {PACKAGE}.main import row
from {PACKAGE}.rows import load
from {PACKAGE}.world import read
load()
world = read()
for id_ in sys.argv[1:]:
    print(row(ATTEMPTS[id_], Place.DRIVER, world), flush=True)
"""
load()
WAYS = [each for each in ATTEMPTS if each.startswith("EGR-") and Place.DRIVER in ATTEMPTS[each].places]
NOT_THERE = {"EGR-42"}
"""Needs a whole cluster: its egress listener."""


@pytest.fixture
def put_out() -> Iterator[Outlets]:
    with outlets(NONCE) as made:
        yield made


def pack(directory: Path, world: World) -> None:
    """Put the package with the attempts, and their targets, where the box can read them."""
    source = Path(str(sluice.audit.insider.payload.__file__)).parent
    shutil.copytree(source, directory / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / PACKAGE / TARGETS).write_bytes(encode(world))


class Anything(dict[str, Answer]):
    """DNS answers: every name has an address, made up for this network alone."""

    def get(self, name: object, default: object = None) -> Any:
        return True


async def results(
    networked: Networked, put_out: Outlets, ways: Sequence[str] = tuple(WAYS)
) -> dict[str, dict[str, Any]]:
    """Run the attempts in the box, and return the result of each by its id."""
    with canaries(NONCE) as others:
        pack(networked.boxes.work, World(nonce=NONCE, targets=(*put_out.targets, *others.targets)))
        child = await networked.start(PROGRAM, *ways)
        await child.wait()
    lines = networked.boxes.output().splitlines()
    told = [json.loads(line.split(" ", 2)[2]) for line in lines if line.startswith("SLUICE-INSIDER")]
    assert len(told) == len(ways), (networked.boxes.logs / "err").read_text()
    return {each["id"]: each for each in told}


@pytest.mark.timeout(300)
async def test_no_egress_attempt_gets_out_and_each_leaves_a_row(networked: Networked, put_out: Outlets) -> None:
    told = await results(networked, put_out)
    outcomes = {id_: each["outcome"] for id_, each in told.items()}
    reached = {id_: each for id_, each in told.items() if each["outcome"] == "reached"}
    assert not reached
    assert put_out.heard == set()
    untried = {id_: told[id_]["seen"] for id_, outcome in outcomes.items() if outcome == "untried"}
    assert set(untried) <= NOT_THERE, untried

    # Of all that was meant for others there is a row. Loopback is the box's own: who connects there meets nobody.
    await until(lambda: {each.protocol for each in networked.rows.refusals} >= {"udp", "dns", "tcp"})
    rows = networked.rows.refusals
    assert {each.address for each in rows if each.protocol == "tcp"} == {
        "169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"
    }  # fmt: skip
    await until(lambda: {each.address for each in rows if each.protocol == "udp"} >= {"192.0.2.53", "2001:db8::53"})
    asked = {each.name for each in rows if each.protocol == "dns"}
    assert {f"{NONCE}.txt.example.com", f"{NONCE}.null.example.com", "example.com"} <= asked
    assert any(each.startswith(f"{NONCE}aaaa") for each in asked)

    # What the box refuses by itself is told, too: as the program asked for it.
    others = {(each.protocol, each.name) for each in rows if each.reason in {"call_refused", "no_such_socket"}}
    assert others >= {
        ("mptcp", "socket(AF_INET, SOCK_STREAM, 262)"),
        ("fast-open", "setsockopt(TCP_FASTOPEN_CONNECT)"),
        ("icmp", "socket(AF_INET, SOCK_DGRAM, 1)"),
        ("raw", "socket(AF_INET, SOCK_RAW, 1)"),
        ("packet", "socket(AF_PACKET, SOCK_RAW, 768)"),
        ("call", "setns"),
        ("call", "unshare"),
        ("io_uring", "io_uring_setup"),
        ("vsock", "socket(AF_VSOCK, SOCK_STREAM, 0)"),
    }
    assert any(protocol == "unix" and name.startswith("@") for protocol, name in others)
    first_packets = {each.address for each in rows if each.protocol == "fast-open" and each.address}
    assert first_packets == {"127.0.0.1"}


async def test_made_up_dns_answers_carry_no_data_out(networked: Networked, put_out: Outlets) -> None:
    """As in a cluster, where every name gets an address, and only connecting to it is judged."""
    networked.rules.names = Anything()
    told = await results(networked, put_out, ["EGR-22", "EGR-23", "EGR-24", "EGR-25"])
    assert {each["outcome"] for each in told.values()} == {"refused"}
    assert "made up" in told["EGR-25"]["seen"]
