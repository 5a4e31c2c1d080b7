"""The resolver's answers."""

from __future__ import annotations

from ipaddress import ip_address
from types import SimpleNamespace
from typing import cast

import dns.message
import dns.rcode
import pytest

from sluice.runtime.sandbox.network import Answer, Refusal, Rules
from sluice.runtime.sandbox.network.names.names import Names
from sluice.runtime.sandbox.network.names.resolver import MAX_QUESTION_BYTES, WHY, Resolver
from sluice.runtime.sandbox.network.refusals import Refusals

KNOWN: dict[str, Answer] = {
    "api.example.com": True,
    "worker-1": (ip_address("10.0.0.1"),),
    "unclear.example": None,
}


class Asked:
    """A resolver, and the refusals it has reported."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        self.names = Names()
        rules = cast("Rules", SimpleNamespace(resolve=self._resolve))
        self.resolver = Resolver(rules, self.names, cast("Refusals", SimpleNamespace(add=self.refusals.append)))

    @staticmethod
    async def _resolve(name: str) -> Answer:
        if name == "broken":
            raise RuntimeError(name)
        return KNOWN.get(name, False)

    async def ask(self, name: str, kind: str = "A", *, limit: int | None = None, edns: int = -1) -> dns.message.Message:
        """Ask the resolver one question and return its answer."""
        wire = await self.resolver.answer(dns.message.make_query(name, kind, use_edns=edns).to_wire(), limit=limit)
        assert wire is not None
        return dns.message.from_wire(wire)


def _told(message: dns.message.Message) -> list[str]:
    return [str(each) for answer in message.answer for each in answer]


@pytest.fixture
def asked() -> Asked:
    return Asked()


async def test_a_name_the_policy_may_allow_resolves_to_virtual_addresses(asked: Asked) -> None:
    v4, v6 = _told(await asked.ask("API.example.com"))[0], _told(await asked.ask("api.example.com", "AAAA"))[0]

    assert asked.names.name_of(ip_address(v4)) == asked.names.name_of(ip_address(v6)) == "api.example.com"
    assert _told(await asked.ask(ip_address(v4).reverse_pointer, "PTR")) == ["api.example.com."]
    for kind in ("TXT", "MX", "HTTPS", "SRV", "CNAME", "ANY"):
        answer = await asked.ask("api.example.com", kind)
        assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, [])
    assert asked.refusals == []


async def test_a_cluster_host_resolves_to_its_real_address(asked: Asked) -> None:
    assert _told(await asked.ask("worker-1")) == ["10.0.0.1"]
    assert _told(await asked.ask("worker-1", "AAAA")) == []


@pytest.mark.parametrize("name", ["denied.example", "stolen-data.api.example.com", "broken"])
@pytest.mark.parametrize("kind", ["A", "AAAA", "TXT", "NULL"])
async def test_a_name_that_is_not_allowed_is_nxdomain_and_recorded_as_refused(
    asked: Asked, name: str, kind: str
) -> None:
    answer = await asked.ask(name, kind)

    assert (answer.rcode(), answer.answer) == (dns.rcode.NXDOMAIN, [])
    assert asked.refusals == [Refusal("", "dns", "", 0, name, "not_allowed")]


async def test_a_malformed_dns_message_gets_no_answer(asked: Asked) -> None:
    query = dns.message.make_query("api.example.com", "A")
    response = dns.message.make_response(query).to_wire()
    for message in (b"", b"x", bytes(12), b"\xff" * 40, bytes(MAX_QUESTION_BYTES + 1), response, query.to_wire()[:-3]):
        assert await asked.resolver.answer(message) is None


async def test_a_dns_message_with_a_compression_pointer_loop_gets_no_answer(asked: Asked) -> None:
    assert await asked.resolver.answer(bytes.fromhex("000101000001000000000000c00cc00c00010001")) is None


async def test_the_reverse_lookup_of_a_foreign_address_is_nxdomain_and_not_recorded(asked: Asked) -> None:
    assert (await asked.ask("8.8.8.8.in-addr.arpa", "PTR")).rcode() == dns.rcode.NXDOMAIN
    assert asked.refusals == []


async def test_an_undecided_name_is_servfail_so_that_programs_retry(asked: Asked) -> None:
    answer = await asked.ask("unclear.example")
    assert (answer.rcode(), answer.answer) == (dns.rcode.SERVFAIL, [])
    assert asked.refusals == [Refusal("", "dns", "", 0, "unclear.example", "not_decided")]


async def test_a_refusal_explains_the_policy_only_to_clients_with_edns(asked: Asked) -> None:
    (option,) = (await asked.ask("denied.example", edns=0)).options
    assert "EDE 18" in str(option)
    assert WHY in str(option)
    assert (await asked.ask("denied.example")).edns == -1
