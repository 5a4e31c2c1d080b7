"""Which connections of a sandbox stay within its own job."""

from __future__ import annotations

import errno
from ipaddress import ip_address

import pytest

from sluice.core import ANY_PORT
from sluice.runtime.job_network import JobRules, KnownListeners, ReservedPorts
from sluice.runtime.job_network.reserved_ports import PRIVATE_PORTS
from sluice.runtime.sandbox.network import Answer, Connect, HostAddress, Inside, Refuse

HERE, WORKER = ip_address("127.0.0.1"), ip_address("10.0.0.1")
HOSTS = {40000: ("127.0.0.1",), 7338: ("worker-1",), PRIVATE_PORTS.start: ("127.0.0.1",)}


class NoWayOut:
    """An egress rule that refuses everything."""

    async def decide(self, connect: Connect) -> Refuse:
        return Refuse(errno.EACCES, "no_way_out")

    async def resolve(self, name: str) -> Answer:
        return False

    def close(self) -> None:
        pass


async def ask(port: int) -> tuple[str, ...]:
    return HOSTS.get(port, ())


async def resolve(host: str) -> frozenset:  # type: ignore[type-arg]
    return frozenset({ip_address("10.0.0.1")}) if host == "worker-1" else frozenset()


def connect(address: str, port: int, name: str | None = None) -> Connect:
    return Connect("executor", "java", 7, ip_address(address), port, name)


@pytest.mark.parametrize(
    ("wanted", "decision"),
    [
        pytest.param(connect("127.0.0.1", 40000), HostAddress(HERE, 40000, recorded=False), id="job"),
        pytest.param(connect("127.0.0.1", 8888), Inside(), id="its own listener"),
        pytest.param(connect("::1", 8888), Inside(), id="its own listener, IPv6"),
        pytest.param(connect("127.0.0.1", PRIVATE_PORTS.start), Inside(), id="a port that the kernel gave it"),
        pytest.param(
            connect("127.1.0.9", 7338, "worker-1"),
            HostAddress(ip_address("10.0.0.1"), 7338, recorded=False),
            id="a shuffle worker by name",
        ),
        pytest.param(
            connect("10.0.0.1", 7338), HostAddress(ip_address("10.0.0.1"), 7338, recorded=False), id="by address"
        ),
        pytest.param(connect("10.0.0.1", 7337), Refuse(errno.EACCES, "no_way_out"), id="another port of it"),
        pytest.param(connect("127.1.0.9", 40000, "evil"), Refuse(errno.EACCES, "no_way_out"), id="another name"),
        pytest.param(connect("192.0.2.1", 40000), Refuse(errno.EACCES, "no_way_out"), id="another host"),
        pytest.param(connect("169.254.169.254", 80), Refuse(errno.EACCES, "no_way_out"), id="metadata"),
    ],
)
async def test_a_sandbox_reaches_only_listeners_of_its_own_job(wanted: Connect, decision: object) -> None:
    ports = ReservedPorts("127.0.0.1", ())
    rules = JobRules(KnownListeners(ask, resolve=resolve), ports, NoWayOut())
    assert await rules.decide(wanted) == decision


@pytest.mark.parametrize(
    ("name", "of_policy", "wanted"),
    [
        ("api.example.com", True, True),
        ("worker-1", False, True),
        ("worker-1", None, True),
        ("other", False, False),
        ("other", None, None),
    ],
)
async def test_only_names_of_the_policy_and_of_the_hosts_of_the_job_are_resolved(
    name: str, of_policy: Answer, wanted: Answer
) -> None:
    class Policy(NoWayOut):
        async def resolve(self, name: str) -> Answer:
            return of_policy

    async def hosts(port: int) -> tuple[str, ...]:
        return ("127.0.0.1", "worker-1") if port == ANY_PORT else ()

    rules = JobRules(KnownListeners(hosts), ReservedPorts("127.0.0.1", ()), Policy())
    assert await rules.resolve(name) is wanted
