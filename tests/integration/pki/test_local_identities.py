"""The identities that `sluice up` creates, and how it updates a home of an earlier version."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest

from sluice.cli.cluster.identities import issue_due, prepare_authorities
from sluice.cli.config import Configuration, load
from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.refusals import needing_attention
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.profiles import AuthorityKind, Purpose, purposes_of

BOTH = (Purpose.CLIENT, Purpose.SERVER)


@pytest.fixture
def configuration() -> Configuration:
    return load(None, environment={"SLUICE__TASKMANAGER__COUNT": "1", "SLUICE__GATEWAY__AUTH_HOST": "auth.internal"})


@pytest.fixture
def home(tmp_path: Path, configuration: Configuration) -> Home:
    home = Home.at(tmp_path / "home").create()
    prepare_authorities(home, configuration)
    return home


def of(home: Home, name: str) -> tuple[str, tuple[Purpose, ...], AuthorityKind]:
    """Return the identity, purposes and authority of the certificate in a directory of the gateway."""
    material, _ = read_identity(home.identity(Role.GATEWAY, name))
    (kind,) = (kind for kind in AuthorityKind if AuthorityStore(home.pki).certificate(kind) in material.anchors)
    return str(material.spiffe_id), purposes_of(material.leaf), kind


async def test_the_gateway_has_an_internal_and_an_edge_identity(home: Home, configuration: Configuration) -> None:
    async with online_ca(home, configuration.pki, configuration.ca):
        made = await asyncio.to_thread(issue_due, home, configuration)
        assert [line.removeprefix("issued spiffe://sluice.local/") for line in made] == [
            "gateway/edge",
            "gateway/envoy",
            "gateway/connect",
            "auth/auth-1",
            "jobmanager/jobmanager-1",
            "taskmanager/taskmanager-1",
        ]
        assert await asyncio.to_thread(issue_due, home, configuration) == []
    assert of(home, "edge") == ("spiffe://sluice.local/gateway/edge", (Purpose.SERVER,), AuthorityKind.EDGE)
    assert of(home, "envoy") == ("spiffe://sluice.local/gateway/envoy", BOTH, AuthorityKind.INTERNAL)


async def test_public_certificate_in_the_place_of_the_internal_one_is_replaced(
    home: Home, configuration: Configuration
) -> None:
    """Earlier versions had it there; the certificate is valid otherwise."""
    directory = home.identity(Role.GATEWAY, "envoy")
    spiffe_id = SpiffeId.process("sluice.local", Role.GATEWAY, "envoy")
    LocalIssuer(home, configuration.pki).issue_edge_server(directory, spiffe_id, dns=["localhost"], ips=["127.0.0.1"])
    async with online_ca(home, configuration.pki, configuration.ca):
        made = await asyncio.to_thread(issue_due, home, configuration)
    assert any(line.startswith(f"renewed {spiffe_id}: it is not of") for line in made), made
    assert of(home, "envoy") == (str(spiffe_id), BOTH, AuthorityKind.INTERNAL)
    assert of(home, "edge")[2] is AuthorityKind.EDGE


async def test_own_process_whose_certificate_was_superseded_is_enrolled_again(
    tmp_path: Path, configuration: Configuration, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash between the authority's answer and the disk, or after a thief renewed: the home has the keys."""
    home, now = Home.at(tmp_path / "home").create(), utc_now()
    LocalIssuer(home, configuration.pki, clock=lambda: now - dt.timedelta(hours=14)).ensure_authorities()
    directory = home.identity(Role.TASKMANAGER, "taskmanager-1")
    spiffe_id = SpiffeId.process("sluice.local", Role.TASKMANAGER, "taskmanager-1")
    long_ago = LocalIssuer(home, configuration.pki, clock=lambda: now - dt.timedelta(hours=13))
    long_ago.issue_to(directory, spiffe_id, ips=[configuration.taskmanager.host])
    shown = read_identity(directory)[0].leaf
    authority = OnlineAuthority(home.pki, configuration.pki, clock=lambda: now - dt.timedelta(hours=2))
    authority.renew(shown, new_csr(spiffe_id, ips=[configuration.taskmanager.host])[1])
    authority.close()
    async with online_ca(home, configuration.pki, configuration.ca):
        made = await asyncio.to_thread(issue_due, home, configuration)
    assert any(line.startswith(f"renewed {spiffe_id}: it is past half of its life") for line in made), made
    assert f"{spiffe_id} is enrolled again" in caplog.text
    assert read_identity(directory)[0].leaf != shown
    (refusal,) = needing_attention(home, utc_now())
    assert (refusal.identity, int(refusal.serial, 16)) == (str(spiffe_id), shown.serial_number)
