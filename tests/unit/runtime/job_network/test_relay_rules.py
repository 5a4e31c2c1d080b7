"""Connections that leave a sandbox through the relay."""

from __future__ import annotations

import errno
import ipaddress

import pytest

from sluice.runtime.egress_relay.preamble import RelayRoute, preamble
from sluice.runtime.job_network.relay_rules import RelayRules
from sluice.runtime.sandbox.network.events import Connect, HostAddress, Refuse

CAPABILITY = "0" * 64
RELAY_RULES = RelayRules(RelayRoute(CAPABILITY, lambda: ("127.0.0.1", 4711)))


def wanted(address: str, port: int, name: str | None = None) -> Connect:
    return Connect("driver", "python", 1, ipaddress.ip_address(address), port, name)


@pytest.mark.parametrize(
    ("connect", "authority"),
    [
        (wanted("240.0.0.1", 443, "api.example.com"), "api.example.com:443"),
        (wanted("93.184.216.34", 80), "93.184.216.34:80"),
        (wanted("2606:2800::1", 80), "[2606:2800::1]:80"),
        (wanted("169.254.169.254", 80), "169.254.169.254:80"),
    ],
)
async def test_the_relay_gets_the_destination_that_the_program_asked_for(connect: Connect, authority: str) -> None:
    decision = await RELAY_RULES.decide(connect)
    assert isinstance(decision, HostAddress)
    assert (str(decision.address), decision.port) == ("127.0.0.1", 4711)
    assert decision.preamble == preamble(CAPABILITY, authority)


@pytest.mark.parametrize("name", ["a\r\nb", "a b", "bücher.test", "a:1@b"])
async def test_a_name_that_no_proxy_header_can_contain_is_refused(name: str) -> None:
    assert await RELAY_RULES.decide(wanted("240.0.0.1", 443, name)) == Refuse(errno.ECONNREFUSED, "unclear_destination")


async def test_the_relay_rules_resolve_any_name() -> None:
    assert await RELAY_RULES.resolve("any.test") is True
