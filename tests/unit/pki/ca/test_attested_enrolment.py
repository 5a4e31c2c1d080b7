"""What the authority signs for whom an attestor has verified, with a clock that is moved."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sluice.core.errors import CertificateRejected
from sluice.pki.attestation.attestor import Attested, Grant
from sluice.pki.errors import CertificateSuperseded, EnrolmentRefused
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.profiles import AuthorityKind, Names
from tests.unit.pki.ca.test_ca_superseded import WORKER, World, leaf_of

HOUR = dt.timedelta(hours=1)
EDGE = SpiffeId.process("td", Role.GATEWAY, "edge")


def pod(uid: str, *identities: SpiffeId) -> Attested:
    """A pod that may have these."""
    return Attested(f"pod:n/s/p/{uid}", tuple(Grant(Names.checked(each, (), ())) for each in identities or (WORKER,)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


def test_a_thief_of_a_pods_token_is_noticed_and_shut_out(world: World) -> None:
    """The token works from anywhere. Of the two that enrolled with it one is refused, and that is recorded."""
    request = new_csr(WORKER)[1]
    owner = leaf_of(world.authority.enrol_attested(pod("a"), str(WORKER), request))
    thief = leaf_of(world.authority.enrol_attested(pod("a"), str(WORKER), new_csr(WORKER)[1]))
    world.now += HOUR
    with pytest.raises(CertificateSuperseded):
        world.renew(owner)
    assert [record.identity for record in world.refused()] == [str(WORKER)]
    again = leaf_of(world.authority.enrol_attested(pod("a"), str(WORKER), new_csr(WORKER)[1]))
    world.now += HOUR
    with pytest.raises(CertificateSuperseded):
        world.renew(thief)
    world.renew(again)


def test_the_pod_of_yesterday_is_refused_also_after_a_restart(world: World) -> None:
    world.authority.enrol_attested(pod("a"), str(WORKER), new_csr(WORKER)[1])
    new = leaf_of(world.authority.enrol_attested(pod("b"), str(WORKER), new_csr(WORKER)[1]))
    for _ in range(2):
        with pytest.raises(EnrolmentRefused, match="was succeeded"):
            world.authority.enrol_attested(pod("a"), str(WORKER), new_csr(WORKER)[1])
        world.restart()
    world.now += HOUR
    world.renew(new)


def test_a_revoked_identity_is_not_enrolled(world: World) -> None:
    had = leaf_of(world.authority.enrol_attested(pod("a"), str(WORKER), new_csr(WORKER)[1]))
    revocations = RevocationStore(world.home.pki, world.config, clock=world.clock)
    target = RevocationTarget.of(had, str(WORKER))
    revocations.revoke(AuthorityKind.INTERNAL, [target], Reason.KEY_COMPROMISE)
    with pytest.raises(CertificateRejected):
        world.authority.enrol_attested(pod("a"), str(WORKER), new_csr(WORKER)[1])


@pytest.mark.parametrize(
    "spiffe_id",
    [
        SpiffeId.process("td", Role.CA, "ca-2"),
        SpiffeId.process("td", Role.USER, "ada"),
        SpiffeId.process("other", Role.TASKMANAGER, "tm-1"),
        SpiffeId.driver("other", "a" * 32),
    ],
)
def test_no_attestor_can_grant_what_no_process_may_be(spiffe_id: SpiffeId, world: World) -> None:
    with pytest.raises(EnrolmentRefused, match="no process can enrol"):
        world.authority.enrol_attested(pod("a", spiffe_id), str(spiffe_id), new_csr(spiffe_id)[1])


def test_a_public_certificate_is_not_an_internal_one(world: World) -> None:
    grants = (Grant(Names.checked(EDGE, ("a.example",), ()), edge_server=True),)
    attested = Attested("pod:n/s/p/a", grants)
    with pytest.raises(EnrolmentRefused):
        world.authority.enrol_attested(attested, str(EDGE), new_csr(EDGE, dns=("a.example",))[1])
    signed = world.authority.enrol_attested(attested, str(EDGE), new_csr(EDGE, dns=("a.example",))[1], edge_server=True)
    assert (
        leaf_of(signed).issuer
        != leaf_of(world.authority.enrol_attested(pod("b"), str(WORKER), new_csr(WORKER)[1])).issuer
    )
