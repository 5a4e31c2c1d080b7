"""How ``sluice up`` gets the identities of its processes.

It enrols with a token if there is no valid identity, and renews otherwise.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluice.cli.cluster.identities import issue_due, prepare_authorities, refresh_lists
from sluice.cli.config import Configuration, load
from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, SluiceError
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import read_ca
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.enrolment.client import enrol, renew
from sluice.pki.errors import CaUnavailable
from sluice.pki.identities.directory import CHAIN_FILE, read_certificates
from sluice.pki.identities.join_tokens import mint
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import CRL_FILE
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from tests.issued import issued_online

CONFIGURATION: Configuration = load(None, environment={}, flags={"taskmanager.count": 1})
ROLES = (Role.JOBMANAGER, Role.TASKMANAGER)
JOBMANAGER = SpiffeId.process("sluice.local", Role.JOBMANAGER, "jobmanager-1")
WORKER = SpiffeId.process("sluice.local", Role.TASKMANAGER, "taskmanager-1")


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    """A home with a running online authority; the authorities are two days old."""
    located = Home.at(tmp_path / "home")
    two_days_ago = utc_now() - dt.timedelta(days=2)
    LocalIssuer(located, CONFIGURATION.pki, clock=lambda: two_days_ago).ensure_authorities()
    assert not [line for line in prepare_authorities(located, CONFIGURATION) if line.startswith("created")]
    async with online_ca(located, CONFIGURATION.pki, CaConfig()):
        yield located


def issued(home: Home) -> list[tuple[str, str]]:
    """Return what was issued to the JobManager and the TaskManagers: kind and identity."""
    records = issued_online(home.pki)
    return [(each.kind, each.identity) for each in records if SpiffeId.parse(each.identity).role in ROLES]


def put(home: Home, spiffe_id: SpiffeId, *, hours_ago: float, ip: str = "127.0.0.1") -> None:
    """Give a process an identity that was issued ``hours_ago`` hours ago."""
    issuer = LocalIssuer(home, CONFIGURATION.pki, clock=lambda: utc_now() - dt.timedelta(hours=hours_ago))
    issuer.issue_to(home.identity(spiffe_id.role, spiffe_id.name), spiffe_id, ips=[ip])


async def test_missing_identities_are_enrolled_by_token_and_valid_ones_are_kept(home: Home) -> None:
    lines = await asyncio.to_thread(issue_due, home, CONFIGURATION)
    assert len(lines) == 6, "the gateway's three, the auth service's, the JobManager's, the TaskManager's"
    assert issued(home) == [("enrolment", str(JOBMANAGER)), ("enrolment", str(WORKER))]
    for spiffe_id in (JOBMANAGER, WORKER):
        assert TlsIdentity(home.identity(spiffe_id.role, spiffe_id.name)).spiffe_id == spiffe_id
    assert list((home.pki / "ca" / "tokens").glob("*.json")) == [], "no token is left over"
    assert await asyncio.to_thread(issue_due, home, CONFIGURATION) == []


@pytest.mark.parametrize(
    ("hours_ago", "ip", "kind"),
    [
        pytest.param(13, "127.0.0.1", "renewal", id="past half of its life"),
        pytest.param(13, "10.0.0.9", "enrolment", id="past half, and the host was moved"),
        pytest.param(25, "127.0.0.1", "enrolment", id="expired"),
    ],
)
async def test_a_due_identity_is_renewed_or_enrolled_anew_if_it_expired_or_moved(
    hours_ago: float, ip: str, kind: str, home: Home
) -> None:
    put(home, JOBMANAGER, hours_ago=0)
    put(home, WORKER, hours_ago=hours_ago, ip=ip)
    await asyncio.to_thread(issue_due, home, CONFIGURATION)
    assert issued(home) == [(kind, str(WORKER))]


async def test_a_damaged_identity_is_enrolled_anew_by_token(home: Home) -> None:
    put(home, JOBMANAGER, hours_ago=0)
    put(home, WORKER, hours_ago=13)
    (home.identity(WORKER.role, WORKER.name) / "key.pem").write_text("damaged")
    await asyncio.to_thread(issue_due, home, CONFIGURATION)
    assert issued(home) == [("enrolment", str(WORKER))]


async def test_without_the_ca_the_gateway_still_gets_its_certificate_and_other_identities_are_kept(
    tmp_path: Path,
) -> None:
    home = Home.at(tmp_path / "home")
    prepare_authorities(home, CONFIGURATION)
    put(home, JOBMANAGER, hours_ago=13)
    kept = (home.identity(JOBMANAGER.role, JOBMANAGER.name) / "key.pem").read_bytes()
    with pytest.raises(CaUnavailable):
        await asyncio.to_thread(issue_due, home, CONFIGURATION)
    assert TlsIdentity(home.identity(Role.GATEWAY, "edge")).spiffe_id.name == "edge"
    assert (home.identity(JOBMANAGER.role, JOBMANAGER.name) / "key.pem").read_bytes() == kept


def revoke(home: Home, spiffe_id: SpiffeId, reason: Reason) -> None:
    """Revoke the current certificate of a process, and distribute the CRL to all processes."""
    leaf = read_certificates(home.identity(spiffe_id.role, spiffe_id.name) / CHAIN_FILE)[0]
    revocations = LocalIssuer(home, CONFIGURATION.pki).revocations
    revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget.of(leaf, str(spiffe_id))], reason)
    assert refresh_lists(home, CONFIGURATION) == []


async def test_a_superseded_certificate_is_enrolled_anew_and_a_revoked_identity_is_not(home: Home) -> None:
    """The authority itself refuses a revoked identity, with its old certificate and with a fresh token."""
    await asyncio.to_thread(issue_due, home, CONFIGURATION)
    directory = home.identity(WORKER.role, WORKER.name)
    assert (directory / CRL_FILE).exists(), "it came with the certificate"
    revoke(home, WORKER, Reason.SUPERSEDED)
    assert await asyncio.to_thread(issue_due, home, CONFIGURATION) == [f"renewed {WORKER}: it was revoked"]
    assert issued(home)[-1] == ("enrolment", str(WORKER)), "a revoked certificate renews nothing"

    before = issued(home)
    revoke(home, WORKER, Reason.KEY_COMPROMISE)
    assert await asyncio.to_thread(issue_due, home, CONFIGURATION) == []
    address = read_ca(home)
    with pytest.raises(SluiceError):
        await asyncio.to_thread(renew, directory, address.mutual)
    certificate = AuthorityStore(home.pki).certificate(AuthorityKind.INTERNAL)
    record, token = mint(WORKER, certificate, ips=("127.0.0.1",), now=utc_now())
    TokenStore(home.pki).add(record, now=utc_now())
    with pytest.raises(CertificateRejected, match="was revoked"):
        await asyncio.to_thread(
            enrol, directory, address.enrolment, token, WORKER.role, WORKER.name, ips=("127.0.0.1",)
        )
    assert issued(home) == before
