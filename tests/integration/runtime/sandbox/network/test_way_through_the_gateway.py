"""From a program in a box to an outside server, with the job's certificate and a real policy.

The way leads through the broker, the relay and the gateway.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest

from sluice.core.egress import EgressConfig, egress_address
from sluice.runtime.egress_relay.relay import EgressRelay
from sluice.runtime.job_network.relay_rules import RelayRules
from sluice.runtime.sandbox.network.events import Connect, HostAddress
from tests.egress_gateway import HELLO, TRUST_DOMAIN, EgressGateway, egress_gateway
from tests.integration.runtime.sandbox.network.conftest import Networked, until

ANY = ip_address("240.0.0.1")
RULES = """
[[egress]]
to = ["allowed.test:*", "rebound.test:*"]
users = ["ada"]
addresses = ["127.0.0.9/32"]
"""
CONNECT = r"""
import json, socket, ssl, sys
told = {}
for host, name, port in json.loads(sys.argv[1]):
    try:
        context = ssl.create_default_context(cadata=sys.argv[2])
        context.check_hostname = name == host
        with socket.create_connection((host, port), timeout=20) as plain:
            told[f"{host} {name}"] = context.wrap_socket(plain, server_hostname=name).recv(100).decode()
    except OSError as error:
        told[f"{host} {name}"] = type(error).__name__
print(json.dumps(told))
"""


@pytest.fixture
async def gateway() -> AsyncIterator[EgressGateway]:
    async with egress_gateway() as running:
        running.allow(RULES)
        running.names.names |= {
            "allowed.test": ("127.0.0.9",),
            "denied.test": ("127.0.0.9",),
            "rebound.test": ("127.0.0.10",),
        }
        yield running


@pytest.fixture
async def relay(gateway: EgressGateway) -> AsyncIterator[EgressRelay]:
    directory = Path(tempfile.mkdtemp(prefix="slr"))
    relay = EgressRelay(directory / "relay", TRUST_DOMAIN, partial(egress_address, EgressConfig(), gateway.home))
    yield relay
    await relay.close()
    shutil.rmtree(directory)


async def test_a_program_reaches_what_the_policy_allows(
    networked: Networked, gateway: EgressGateway, relay: EgressRelay
) -> None:
    async with (
        gateway.tls_upstream("allowed.test", "denied.test", "rebound.test") as port,
        relay.attempt(gateway.driver()) as route,
    ):
        egress_rules = RelayRules(route)
        wanted = [
            ("allowed.test", "allowed.test", port),
            ("allowed.test", "denied.test", port),
            ("denied.test", "denied.test", port),
            ("rebound.test", "rebound.test", port),
            ("127.0.0.9", "127.0.0.9", port),
            ("169.254.169.254", "169.254.169.254", 80),
        ]
        for host, _, at in wanted:
            networked.rules.names[host] = await egress_rules.resolve(host)
            decision = await egress_rules.decide(Connect("python", "python", 1, ANY, at, host))
            assert isinstance(decision, HostAddress)
            networked.rules.outside[host, at] = decision
        told = await networked.run(CONNECT, json.dumps(wanted), gateway.upstream_authority.cert_pem.bytes().decode())
        assert told.pop("allowed.test allowed.test") == HELLO.decode()
        assert set(told) == {f"{host} {name}" for host, name, _ in wanted[1:]}
        assert not any(HELLO.decode() in each for each in told.values())
    decisions = {each["path"]: each["decision"] for each in gateway.decisions()}
    assert decisions == {
        f"allowed.test:{port}": "allow",
        f"denied.test:{port}": "deny",
        f"rebound.test:{port}": "deny",
        f"127.0.0.9:{port}": "deny",
        "169.254.169.254:80": "deny",
    }
    await until(lambda: len(networked.rows.ended) == len(wanted))
