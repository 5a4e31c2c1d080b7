"""Bulk issue: good certificates are kept, all others are issued, and each reason is reported."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.errors import CertificateRejected, StoreError
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.database import IdentityStore
from sluice.pki.identities.directory import previous_certificates, read_identity
from sluice.pki.issuing.bulk import (
    Action,
    DatabaseDestination,
    Destination,
    DirectoryDestination,
    IssueResult,
    check_all,
    issue_all,
)
from sluice.pki.issuing.engine import IssuingEngine
from sluice.pki.issuing.inventory import parse_inventory
from sluice.pki.issuing.leaf import LeafRequest, renewal_request
from sluice.pki.revocation.crl import Reason, load_crls
from sluice.pki.revocation.crl_files import CRL_FILE
from sluice.pki.revocation.store import RevocationTarget as Revoked
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind, Purpose
from sluice.pki.x509.verification import verify_chain
from tests.hostile import TRUST_DOMAIN

CONFIG = PkiConfig()
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
TASKMANAGERS = b"""
[[identity]]
id = "taskmanager/tm-{n}"
dns = ["tm-{n}.example"]
ips = ["10.0.0.1", "2001:DB8::1"]
accept = ["spiffe://sluice.local/job/*"]
count = 3
"""


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> dt.datetime:
        return self.now


class Cluster:
    """Authorities, a clock, and both kinds of destination."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.home = Home.at(folder / "home")
        self.authorities = AuthorityStore(self.home.pki)
        self.authorities.ensure(CONFIG, START - dt.timedelta(days=1))
        self.file = folder / "cluster.identities"

    def engine(self, config: PkiConfig = CONFIG) -> IssuingEngine:
        return IssuingEngine(self.home.pki, config, clock=self.clock, read_once=True)

    def run(
        self, kind: str, inventory: bytes = TASKMANAGERS, *, force: bool = False, reinstate: bool = False
    ) -> list[IssueResult]:
        requests = parse_inventory(inventory, CONFIG)
        if kind == "directories":
            return self._run(requests, DirectoryDestination(self.engine(), self.home), force=force, reinstate=reinstate)
        with IdentityStore(self.file, create=True) as store:
            outcomes = self._run(requests, DatabaseDestination(store), force=force, reinstate=reinstate)
            store.commit()
        return outcomes

    def _run(self, requests: object, destination: Destination, *, force: bool, reinstate: bool) -> list[IssueResult]:
        engine = self.engine()
        check_all(requests.samples(), destination, engine)  # type: ignore[attr-defined]  # an Inventory
        return list(issue_all(requests, destination, engine, force=force, reinstate=reinstate))  # type: ignore[arg-type]

    def request(self, inventory: bytes = TASKMANAGERS) -> LeafRequest:
        return next(iter(parse_inventory(inventory, CONFIG)))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def actions(outcomes: list[IssueResult]) -> list[Action]:
    return [outcome.action for outcome in outcomes]


KINDS = pytest.mark.parametrize("kind", ["store", "directories"])


@KINDS
def test_a_repeated_bulk_issue_keeps_identities_that_are_still_good(
    kind: str, cluster: Cluster, tmp_path: Path
) -> None:
    assert actions(cluster.run(kind)) == [Action.ISSUED] * 3
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    cluster.clock.now += dt.timedelta(hours=1)
    outcomes = cluster.run(kind)
    assert actions(outcomes) == [Action.KEPT] * 3
    assert outcomes[0].reason == "renewed from 2030-01-01 11:57 UTC on"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@KINDS
@pytest.mark.parametrize(
    ("inventory", "hours", "says"),
    [
        pytest.param(TASKMANAGERS, 12, "past half of its life", id="half-life"),
        pytest.param(TASKMANAGERS, 30, "past half of its life", id="expired"),
        pytest.param(TASKMANAGERS, -2, "not valid yet", id="clock-went-back"),
        pytest.param(TASKMANAGERS.replace(b'example"', b'example", "more"'), 1, "lacks the name more", id="more-names"),
        pytest.param(TASKMANAGERS.replace(b'"10.0.0.1", ', b""), 1, "has the name 10.0.0.1", id="fewer-names"),
        pytest.param(TASKMANAGERS.replace(b"job/*", b"*"), 1, "accepts other peers", id="other-peers"),
    ],
)
def test_an_outdated_or_differing_identity_is_renewed_with_the_reason(
    kind: str, inventory: bytes, hours: int, says: str, cluster: Cluster
) -> None:
    cluster.run(kind)
    cluster.clock.now += dt.timedelta(hours=hours)
    outcomes = cluster.run(kind, inventory)
    assert actions(outcomes) == [Action.RENEWED] * 3
    assert says in outcomes[0].reason
    assert actions(cluster.run(kind, inventory)) == [Action.KEPT] * 3


@KINDS
def test_all_identities_are_renewed_by_force_or_after_a_change_of_authority(
    kind: str, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.run(kind)
    forced = cluster.run(kind, force=True)
    assert {outcome.reason for outcome in forced} == {"it was asked for"}
    cluster.authorities.directory(AuthorityKind.INTERNAL).rename(tmp_path / "away")
    cluster.authorities.ensure(CONFIG, START)
    outcomes = cluster.run(kind)
    assert {outcome.reason for outcome in outcomes} == {"it is not of today's internal authority"}
    with IdentityStore(cluster.file, create=True) as store:
        destination = (
            DatabaseDestination(store) if kind == "store" else DirectoryDestination(cluster.engine(), cluster.home)
        )
        found = destination.read(cluster.request())
    assert found is not None
    material, accept = found
    anchor = cluster.authorities.certificate(AuthorityKind.INTERNAL)
    verify_chain(material.leaf, material.chain, [anchor], now=START, purpose=Purpose.SERVER)
    assert accept == ("spiffe://sluice.local/job/*",)
    assert material.anchors == (anchor,)


def test_only_new_identities_of_a_grown_inventory_are_issued(cluster: Cluster) -> None:
    cluster.run("store")
    grown = TASKMANAGERS.replace(b"count = 3", b"count = 5")
    assert actions(cluster.run("store", grown)) == [Action.KEPT] * 3 + [Action.ISSUED] * 2


def test_a_damaged_identity_directory_is_renewed(cluster: Cluster) -> None:
    cluster.run("directories")
    request = cluster.request()
    directory = DirectoryDestination(cluster.engine(), cluster.home).place(request.names.spiffe_id)
    (directory / "key.pem").write_bytes((directory / "key.pem").read_bytes()[:-50])
    outcomes = cluster.run("directories")
    assert actions(outcomes) == [Action.RENEWED, Action.KEPT, Action.KEPT]
    assert "not a readable PEM private key" in outcomes[0].reason
    read_identity(directory)


@pytest.mark.parametrize(
    ("inventory", "says"),
    [
        pytest.param(b"[[identity]]\nid = 'job/" + b"a" * 32 + b"/driver'", "no place below the home", id="job"),
        pytest.param(TASKMANAGERS + b"[[identity]]\nid = 'user/ada'", "key of the edge authority", id="no-edge-key"),
    ],
)
def test_an_inventory_that_cannot_be_issued_is_refused_before_anything_is_issued(
    inventory: bytes, says: str, cluster: Cluster
) -> None:
    (cluster.authorities.directory(AuthorityKind.EDGE) / "key.pem").unlink()
    with pytest.raises(StoreError, match=says):
        cluster.run("directories", inventory)
    assert not (cluster.home.pki / "identities").exists()


def test_identity_of_another_trust_domain_is_refused(cluster: Cluster) -> None:
    other = PkiConfig(trust_domain="other.local")
    foreign = next(iter(parse_inventory(b"[[identity]]\nid = 'user/ada'", other)))
    destination = DirectoryDestination(cluster.engine(), cluster.home)
    with pytest.raises(CertificateRejected, match=r"not of trust domain sluice\.local"):
        check_all([foreign], destination, cluster.engine())
    with pytest.raises(StoreError, match=r"authority is of trust domain sluice\.local"):
        check_all([foreign], destination, cluster.engine(other))


@pytest.mark.parametrize(
    "inventory",
    [
        TASKMANAGERS,
        b"[[identity]]\nid = 'user/ada'",
        b"[[identity]]\nid = 'gateway/envoy'\ndns = ['a.example']\nedge_server = true",
        b"[[identity]]\nid = 'gateway/envoy'\ndns = ['a.example']",
    ],
    ids=["process", "user", "edge-server", "gateway"],
)
def test_a_renewal_request_equals_the_original_request(inventory: bytes, cluster: Cluster) -> None:
    cluster.run("directories", inventory)
    request = cluster.request(inventory)
    found = DirectoryDestination(cluster.engine(), cluster.home).read(request)
    assert found is not None
    assert replace(renewal_request(found[0].leaf, CONFIG), accept=found[1]) == request


def test_the_repr_of_an_issued_identity_shows_no_key(cluster: Cluster) -> None:
    issued = cluster.engine().sign(cluster.request())
    assert "Key" not in repr(issued).replace("key=", "")


TM_2 = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-2")


def revoke(cluster: Cluster, kind: str, reason: Reason) -> x509.Certificate:
    """Revoke the second TaskManager's certificate and return it."""
    with IdentityStore(cluster.file, create=True) as store:
        destination = (
            DatabaseDestination(store) if kind == "store" else DirectoryDestination(cluster.engine(), cluster.home)
        )
        found = destination.read(list(parse_inventory(TASKMANAGERS, CONFIG))[1])
    assert found is not None
    leaf = found[0].leaf
    cluster.engine().revocations.revoke(AuthorityKind.INTERNAL, [Revoked.of(leaf, str(TM_2))], reason)
    return leaf


@KINDS
def test_a_revoked_identity_is_refused_until_it_is_reinstated(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    cluster.run(kind)
    revoke(cluster, kind, Reason.KEY_COMPROMISE)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outcomes = cluster.run(kind)
    assert actions(outcomes) == [Action.KEPT, Action.REFUSED, Action.KEPT]
    assert outcomes[1].reason == "it was revoked at 2030-01-01 00:00:00 UTC (key-compromise)"
    assert actions(cluster.run(kind, force=True)) == [Action.RENEWED, Action.REFUSED, Action.RENEWED]
    changed = {path for path, data in before.items() if path.read_bytes() != data}
    assert not any("tm-2" in path.parts for path in changed)
    outcomes = cluster.run(kind, reinstate=True)
    assert actions(outcomes) == [Action.KEPT, Action.RENEWED, Action.KEPT]
    assert [outcome.reinstated for outcome in outcomes] == [False, True, False]
    assert "(key-compromise) and is admitted again" in outcomes[1].reason
    assert actions(cluster.run(kind)) == [Action.KEPT] * 3


@KINDS
def test_a_superseded_certificate_is_replaced_without_reinstating(kind: str, cluster: Cluster) -> None:
    cluster.run(kind)
    revoke(cluster, kind, Reason.SUPERSEDED)
    outcomes = cluster.run(kind)
    assert actions(outcomes) == [Action.KEPT, Action.RENEWED, Action.KEPT]
    assert (outcomes[1].reason, outcomes[1].reinstated) == ("it was revoked", False)
    assert actions(cluster.run(kind)) == [Action.KEPT] * 3


def test_reinstating_an_identity_always_issues_a_new_certificate(cluster: Cluster) -> None:
    """The existing certificate is replaced even if it looks good: an earlier one may have been revoked."""
    cluster.run("directories")
    revoke(cluster, "directories", Reason.SUPERSEDED)
    earlier = Revoked(0x5A3F, str(TM_2))
    cluster.engine().revocations.revoke(AuthorityKind.INTERNAL, [earlier], Reason.PRIVILEGE_WITHDRAWN)
    assert actions(cluster.run("directories", reinstate=True)) == [Action.KEPT, Action.RENEWED, Action.KEPT]


def test_the_issuing_engine_refuses_a_revoked_identity(cluster: Cluster) -> None:
    cluster.run("directories")
    revoke(cluster, "directories", Reason.KEY_COMPROMISE)
    request = list(parse_inventory(TASKMANAGERS, CONFIG))[1]
    with pytest.raises(CertificateRejected, match="was revoked at"):
        cluster.engine().sign(request)


def test_identity_directories_get_the_crl_and_remember_replaced_certificates(cluster: Cluster) -> None:
    cluster.run("directories")
    places = [cluster.home.identity(Role.TASKMANAGER, f"tm-{number}") for number in (1, 2, 3)]
    assert not any((place / CRL_FILE).exists() for place in places)
    revoked = revoke(cluster, "directories", Reason.KEY_COMPROMISE)
    earlier = read_identity(places[0])[0].leaf
    cluster.run("directories", force=True)
    cluster.run("directories", reinstate=True)
    (listed,) = load_crls((places[0] / CRL_FILE).read_bytes())
    assert [entry.serial_number for entry in listed] == [revoked.serial_number]
    assert [(place / CRL_FILE).exists() for place in places] == [True, True, True]
    assert previous_certificates(places[0]) == [earlier]
    assert previous_certificates(places[1]) == [revoked]
