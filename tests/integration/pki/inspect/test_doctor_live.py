"""The doctor alongside running processes.

A healthy process gives no finding; what each process presents is compared with its files.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress, publish_ca
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.channels import Channel, client_policy
from sluice.pki.inspect.doctor.examine import Processes, examine
from sluice.pki.inspect.doctor.online import announced, peer_time
from sluice.pki.inspect.findings import Finding
from sluice.pki.inspect.live.address import Address
from sluice.pki.revocation.crl_files import push_crls
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from sluice.pki.x509.profiles import AuthorityKind
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, TestPki

CA = SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1")


@pytest.fixture
def home(pki: TestPki) -> Home:
    """A healthy home; the root's key is kept elsewhere."""
    pki.home.create()
    pki.issuer.revocations.refresh_all()
    (AuthorityStore(pki.home.pki).directory(AuthorityKind.ROOT) / "key.pem").unlink()
    return pki.home


@pytest.fixture
async def running(pki: TestPki, home: Home) -> AsyncIterator[CaAddress]:
    """The running online authority of that home."""
    async with online_ca(home, pki.config, CaConfig()) as address:
        push_crls(home, pki.issuer.revocations.lists(), utc_now())
        yield address


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that is taken but has no listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def findings(home: Home) -> list[Finding]:
    return await asyncio.to_thread(examine, home, Processes(home.run / "cluster.json"), utc_now)


async def test_a_healthy_running_home_has_no_findings(running: CaAddress, home: Home) -> None:
    (process,) = announced(home)
    assert (process.role, process.alive, process.directory) == (Role.CA, True, home.identity(Role.CA, "ca-1"))
    assert process.listeners == (Address(*running.mutual), Address(*running.enrolment))
    assert await findings(home) == []


async def test_a_listener_that_presents_its_renewed_certificate_has_no_findings(
    running: CaAddress, pki: TestPki, home: Home
) -> None:
    pki.issuer.issue_to(home.identity(Role.CA, "ca-1"), CA, ips=["127.0.0.1"])
    push_crls(home, pki.issuer.revocations.lists(), utc_now())
    assert await findings(home) == []
    assert running.name == "ca-1"


async def test_a_listener_that_presents_an_outdated_certificate_is_reported_as_stale(
    pki: TestPki, home: Home, tmp_path: Path
) -> None:
    """It serves from a copy, like a process that can no longer read its directory."""
    directory = home.identity(Role.CA, "ca-1")
    pki.issuer.issue_to(directory, CA, ips=["127.0.0.1"])
    shutil.copytree(directory, tmp_path / "copy")
    pki.issuer.issue_to(directory, CA, ips=["127.0.0.1"])
    identity = TlsIdentity(tmp_path / "copy")
    listener = MutualTlsListener(identity, Channel.CA, client_policy(Channel.CA, TRUST_DOMAIN), asyncio.Protocol)
    bound = await listener.start("127.0.0.1", 0)
    publish_ca(home, CaAddress(name="ca-1", mutual=bound, enrolment=bound, pid=0))
    try:
        found = await findings(home)
    finally:
        await listener.close()
    assert [(each.code, each.path) for each in found] == [("listener-stale", f"127.0.0.1:{bound[1]}")]


async def test_an_announced_address_without_a_listener_is_reported_unless_offline(
    pki: TestPki, home: Home, silent_port: int
) -> None:
    pki.issuer.issue_to(home.identity(Role.CA, "ca-1"), CA)
    there = ("127.0.0.1", silent_port)
    publish_ca(home, CaAddress(name="ca-1", mutual=there, enrolment=there, pid=0))
    assert [each.code for each in await findings(home)] == ["listener-unreachable"]

    def command(*arguments: str) -> tuple[object, list[str]]:
        done = sluice("pki", "doctor", home.root, "--json", *arguments)
        return done.returncode, [each["code"] for each in json.loads(done.stdout)["findings"]]

    assert await asyncio.to_thread(command) == (1, ["listener-unreachable"])
    assert await asyncio.to_thread(command, "--offline") == (0, [])


async def test_damaged_announcement_files_are_ignored(home: Home) -> None:
    directory = home.run / "endpoints"
    directory.mkdir(mode=0o700)
    for name, content in (("ca", "{"), ("jobmanager", '{"rpc": ["a", 70000]}'), ("envoy", "[]"), ("other", "{}")):
        (directory / f"{name}.json").write_text(content)
    assert list(announced(home)) == []


async def test_peer_time_is_read_from_a_listener_and_is_none_for_a_silent_port(
    running: CaAddress, silent_port: int
) -> None:
    told = await asyncio.to_thread(peer_time, Address(*running.enrolment))
    assert told is not None
    assert abs(told - utc_now()) < dt.timedelta(minutes=1)
    assert await asyncio.to_thread(peer_time, Address("127.0.0.1", silent_port)) is None


@pytest.mark.parametrize("name", ["edge", "envoy"])
def test_envoy_is_compared_with_its_edge_identity_or_else_with_its_only_identity(name: str, home: Home) -> None:
    endpoints = home.run / "endpoints"
    endpoints.mkdir(parents=True, exist_ok=True)
    (endpoints / "envoy.json").write_text(json.dumps({"host": "127.0.0.1", "port": 8443}))
    for each in {"envoy", name}:
        home.identity(Role.GATEWAY, each).mkdir(parents=True)
    (found,) = announced(home)
    assert found.directory == home.identity(Role.GATEWAY, name)
