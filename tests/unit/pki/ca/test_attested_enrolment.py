"""What the authority signs for a workload that an attestor has verified, with a clock that is moved."""

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
    """Return an attested pod that may have these identities."""
    return Attested(f"pod:n/s/p/{uid}", tuple(Grant(Names.checked(each, (), ())) for each in identities or (WORKER,)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


def test_a_stolen_pod_token_is_detected_and_the_thief_refused(world: World) -> None:
    """A token works from anywhere. Of two that enrol with it, one is refused, and that is recorded."""
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


def test_a_succeeded_pod_is_refused_even_after_a_restart(world: World) -> None:
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
def test_an_attestor_cannot_grant_an_identity_that_cannot_enrol(spiffe_id: SpiffeId, world: World) -> None:
    with pytest.raises(EnrolmentRefused, match="no process can enrol"):
        world.authority.enrol_attested(pod("a", spiffe_id), str(spiffe_id), new_csr(spiffe_id)[1])


def test_a_grant_of_a_public_certificate_does_not_give_an_internal_one(world: World) -> None:
    grants = (Grant(Names.checked(EDGE, ("a.example",), ()), edge_server=True),)
    attested = Attested("pod:n/s/p/a", grants)
    with pytest.raises(EnrolmentRefused):
        world.authority.enrol_attested(attested, str(EDGE), new_csr(EDGE, dns=("a.example",))[1])
    signed = world.authority.enrol_attested(attested, str(EDGE), new_csr(EDGE, dns=("a.example",))[1], edge_server=True)
    assert (
        leaf_of(signed).issuer
        != leaf_of(world.authority.enrol_attested(pod("b"), str(WORKER), new_csr(WORKER)[1])).issuer
    )
