"""Trust bundles and CRLs written to identity directories: trust must continue, never be swapped."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sluice.core.errors import CrlRejected, StoreError
from sluice.pki.authorities.signing import (
    Authority,
    create_intermediate,
    create_root,
    to_pem,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import CA_FILE, read_certificates
from sluice.pki.revocation.crl import sign_crl
from sluice.pki.revocation.crl_files import CRL_FILE
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.trust.distribution import TrustBundle, TrustPusher, replace_anchors
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN, TestPki

JOB = "a" * 32
NOW = dt.datetime.now(dt.UTC)
MASTER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1")


@pytest.fixture
def pki(tmp_path: Path) -> TestPki:
    return TestPki(tmp_path)


@pytest.fixture
def first(pki: TestPki) -> Authority:
    """The current internal authority."""
    return AuthorityStore(pki.home.pki).load(AuthorityKind.INTERNAL)


@pytest.fixture
def second() -> Authority:
    """The next internal authority."""
    return successor()


def successor(trust_domain: str = TRUST_DOMAIN) -> Authority:
    config = PkiConfig(trust_domain=trust_domain)
    return create_intermediate(AuthorityKind.INTERNAL, create_root(config, NOW), config, NOW)


def bundle(*authorities: Authority, lists: bytes = b"") -> TrustBundle:
    return TrustBundle.parse(to_pem(*(each.certificate for each in authorities)), lists)


def a_list(authority: Authority, number: int) -> bytes:
    return sign_crl(authority, (), number=number, now=NOW, lifetime=dt.timedelta(hours=24))


def test_the_anchors_of_successive_rotation_phases_are_installed_one_after_the_other(
    pki: TestPki, first: Authority, second: Authority
) -> None:
    directory = pki.directory(MASTER)
    for phase in ((first,), (first, second), (second, first), (second,)):
        changed = replace_anchors(directory, bundle(*phase))
        assert changed is (phase != (first,))
        assert read_certificates(directory / CA_FILE) == [each.certificate for each in phase]
        assert not replace_anchors(directory, bundle(*phase)), "nothing changes twice"


def test_a_bundle_without_anything_in_common_is_refused(pki: TestPki, second: Authority) -> None:
    directory = pki.directory(MASTER)
    before = (directory / CA_FILE).read_bytes()
    with pytest.raises(StoreError, match="trusts none of"):
        replace_anchors(directory, bundle(second))
    assert (directory / CA_FILE).read_bytes() == before


def test_a_bundle_of_another_trust_domain_is_refused(pki: TestPki, first: Authority) -> None:
    stranger = successor("evil.example")
    with pytest.raises(StoreError, match="trust domain"):
        bundle(first, stranger)
    with pytest.raises(StoreError, match=f"is not of {TRUST_DOMAIN}"):
        replace_anchors(pki.directory(MASTER), bundle(stranger))


def test_a_malformed_trust_bundle_is_refused(pki: TestPki, first: Authority) -> None:
    leaf = pki.identity(MASTER).material.leaf
    for ca_pem in (b"", b"x", to_pem(leaf), to_pem(first.certificate, leaf), to_pem(first.certificate) * 33):
        with pytest.raises(StoreError):
            TrustBundle.parse(ca_pem, b"")
    for crl_pem in (b"x", a_list(first, 1)[:-20]):
        with pytest.raises(CrlRejected):
            TrustBundle.parse(to_pem(first.certificate), crl_pem)


def test_every_identity_directory_of_a_home_gets_the_trust_bundle_of_its_own_authority(
    pki: TestPki, first: Authority, second: Authority
) -> None:
    """Those of drivers and executors too; a CRL comes with the anchor that signed it, which comes first."""
    home = pki.home
    places = {
        home.identity(Role.JOBMANAGER, "jm-1"): MASTER,
        home.work("tm-1") / "jobs" / JOB / "driver-1" / "identity": SpiffeId.driver(TRUST_DOMAIN, JOB),
        home.work("tm-1") / "jobs" / JOB / "executor-3" / "identity": SpiffeId.executor(TRUST_DOMAIN, JOB, 3),
    }
    for directory, spiffe_id in places.items():
        pki.issuer.issue_to(directory, spiffe_id)
    public = home.identity(Role.GATEWAY, "edge")
    pki.issuer.issue_edge_server(public, SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "edge"), dns=["localhost"])
    edge = AuthorityStore(home.pki).load(AuthorityKind.EDGE)

    pusher = TrustPusher(home)
    assert pusher.push(NOW) == ([], {}), "nothing is known yet"
    lists = a_list(first, 1) + a_list(second, 1)
    pusher.take([bundle(first, second, lists=lists), bundle(edge, lists=a_list(edge, 1))])
    changed, failed = pusher.push(NOW)
    assert (set(changed), failed) == ({*places, public}, {})
    for directory in places:
        assert read_certificates(directory / CA_FILE) == [first.certificate, second.certificate]
        assert (directory / CRL_FILE).read_bytes().count(b"BEGIN X509 CRL") == 2
    assert read_certificates(public / CA_FILE) == [edge.certificate]
    assert (public / CRL_FILE).read_bytes().count(b"BEGIN X509 CRL") == 1
    assert pusher.push(NOW) == ([], {})


def test_a_directory_that_is_created_or_reverted_later_gets_the_known_trust_bundle(
    pki: TestPki, first: Authority
) -> None:
    pusher = TrustPusher(pki.home)
    pusher.take([bundle(first, lists=a_list(first, 7))])
    assert pusher.push(NOW) == ([], {})
    driver = pki.home.work("tm-1") / "jobs" / JOB / "driver-1" / "identity"
    pki.issuer.issue_to(driver, SpiffeId.driver(TRUST_DOMAIN, JOB))
    assert pusher.push(NOW) == ([driver], {})
    (driver / CRL_FILE).unlink()
    assert pusher.push(NOW) == ([driver], {})


def test_one_bad_directory_or_crl_does_not_keep_updates_from_the_others(pki: TestPki, first: Authority) -> None:
    good, bad = (pki.home.identity(Role.TASKMANAGER, name) for name in ("tm-1", "tm-0"))
    for directory in (good, bad):
        pki.issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, directory.name))
    (bad / CA_FILE).write_text("garbage")
    pusher = TrustPusher(pki.home)
    foreign = a_list(successor(), 1)
    pusher.take([bundle(first, lists=foreign + a_list(first, 2))])
    changed, failed = pusher.push(NOW)
    assert len(failed) == 2
    assert (good / CRL_FILE).read_bytes().count(b"BEGIN X509 CRL") == 1, "the foreign list stays out, ours is in"
    assert bad not in changed


def test_an_older_crl_does_not_replace_a_newer_one(pki: TestPki, first: Authority) -> None:
    directory = pki.home.identity(Role.TASKMANAGER, "tm-1")
    pki.issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"))
    pusher = TrustPusher(pki.home)
    pusher.take([bundle(first, lists=a_list(first, 9))])
    pusher.push(NOW)
    newer = (directory / CRL_FILE).read_bytes()
    pusher.take([bundle(first, lists=a_list(first, 8))])
    _, failed = pusher.push(NOW)
    assert "older than number 9" in failed[directory]
    assert (directory / CRL_FILE).read_bytes() == newer
