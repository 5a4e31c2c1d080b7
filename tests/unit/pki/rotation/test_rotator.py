"""A rotation of a home: files, phases, refusals. Reports stand for processes; the test sets the clock."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.pki.authorities.bundle_files import bundle_file
from sluice.pki.authorities.rotation_phases import (
    Laggard,
    PeersLag,
    Phase,
    RotationRefused,
)
from sluice.pki.authorities.rotation_store import RotationStore, rotation_directory
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.authorities.trusted_authorities import TrustStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import (
    CA_FILE,
    CHAIN_FILE,
    read_certificates,
    read_identity,
)
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import CRL_FILE
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.trust.reports import DIRECTORY, TrustReport, write_report
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import ISSUING, AuthorityKind

CONFIG = PkiConfig()
INTERNAL, EDGE, ROOT = AuthorityKind.INTERNAL, AuthorityKind.EDGE, AuthorityKind.ROOT
JOB = "a" * 32
PID = 4711


class Cluster:
    """A home with identities on both sides, and one process that reports what the test says."""

    def __init__(self, root: Path) -> None:
        self.home = Home.at(root / "home").create()
        self.now = utc_now()
        self.issuer = LocalIssuer(self.home, CONFIG, clock=lambda: self.now)
        self.issuer.ensure_authorities()
        self.jobmanager = self.home.identity(Role.JOBMANAGER, "jm-1")
        self.worker = self.home.identity(Role.TASKMANAGER, "tm-1")
        self.driver = self.home.work("tm-1") / "jobs" / JOB / "driver-1" / "identity"
        self.gateway = self.home.identity(Role.GATEWAY, "envoy")
        self.internal = (self.jobmanager, self.worker, self.driver)
        for role, directory in ((Role.JOBMANAGER, self.jobmanager), (Role.TASKMANAGER, self.worker)):
            self.issuer.issue_to(directory, SpiffeId.process(CONFIG.trust_domain, role, directory.name))
        self.driver.parent.mkdir(parents=True)
        self.issuer.issue_to(self.driver, SpiffeId.driver(CONFIG.trust_domain, JOB))
        self.issuer.issue_edge_server(
            self.gateway, SpiffeId.process(CONFIG.trust_domain, Role.GATEWAY, "envoy"), dns=["localhost"]
        )
        self.store = AuthorityStore(self.home.pki)
        self.trust = TrustStore(self.home.pki)
        self.renewing = True
        self.running: set[int] = set()
        self.said: list[str] = []
        self.rotator = Rotator(
            self.home,
            CONFIG,
            renew=self.renew,
            report=self.said.append,
            clock=lambda: self.now,
            alive=lambda pid, *_: pid in self.running,
        )

    def renew(self) -> list[str]:
        """Renew certificates as the launcher and the JobManager do."""
        if not self.renewing:
            return []
        today = {key_id(self.store.certificate(kind)) for kind in ISSUING}
        for directory in (*self.internal, self.gateway):
            material, _ = read_identity(directory)
            if issuer_id(material.leaf) in today:
                continue
            if directory == self.gateway:
                self.issuer.issue_edge_server(directory, material.spiffe_id, dns=["localhost"])
            else:
                self.issuer.issue_to(directory, material.spiffe_id)
        return ["renewed"]

    def report(self, directory: Path, pid: int = PID) -> None:
        """Report that the process has loaded its current files."""
        material, _ = read_identity(directory)
        self.running.add(pid)
        write_report(
            directory,
            TrustReport(
                pid=pid,
                started=1.0,
                identity=str(material.spiffe_id),
                program="taskmanager",
                leaf="0" * 64,
                issuer=issuer_id(material.leaf),
                anchors=tuple(key_id(anchor) for anchor in material.anchors),
                crls={},
                loaded_at=self.now,
            ),
        )

    def follow(self, laggards: Sequence[Laggard]) -> bool:
        """Wait for laggards: the process reloads its files meanwhile."""
        assert laggards
        self.report(self.worker)
        return True

    def anchors(self, directory: Path) -> list[str]:
        return [key_id(anchor) for anchor in read_certificates(directory / CA_FILE)]

    def issuers(self) -> set[str]:
        return {issuer_id(read_certificates(directory / CHAIN_FILE)[0]) for directory in self.internal}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def phase(cluster: Cluster) -> Phase:
    return cluster.rotator.state()[1]


def test_the_internal_authority_goes_through_a_complete_rotation(cluster: Cluster) -> None:
    old = key_id(cluster.store.certificate(INTERNAL))
    edge = cluster.anchors(cluster.gateway)
    cluster.report(cluster.worker)

    cluster.rotator.prepare(INTERNAL, patience=cluster.follow)
    new = key_id(cluster.trust.anchors(INTERNAL)[1])
    assert phase(cluster) is Phase.PREPARED
    assert [cluster.anchors(each) for each in cluster.internal] == [[old, new]] * 3
    assert cluster.issuers() == {old}
    assert key_id(cluster.store.certificate(INTERNAL)) == old

    cluster.rotator.activate(INTERNAL)
    assert phase(cluster) is Phase.ACTIVE
    assert [cluster.anchors(each) for each in cluster.internal] == [[new, old]] * 3
    assert cluster.issuers() == {new}
    assert key_id(cluster.store.load(INTERNAL).certificate) == new

    cluster.rotator.finish(INTERNAL, patience=cluster.follow, last_patience=cluster.follow)
    assert phase(cluster) is Phase.STEADY
    assert [cluster.anchors(each) for each in cluster.internal] == [[new]] * 3
    assert not rotation_directory(cluster.home.pki).exists()
    assert cluster.anchors(cluster.gateway) == edge, "the other side is not touched"
    assert not list(cluster.home.pki.glob(".*.tmp"))


def test_a_root_rotation_replaces_all_three_authorities_together(cluster: Cluster) -> None:
    before = {kind: key_id(cluster.store.certificate(kind)) for kind in AuthorityKind}
    cluster.rotator.prepare(ROOT)
    assert len(cluster.anchors(cluster.worker)) == len(cluster.anchors(cluster.gateway)) == 2
    cluster.rotator.activate(ROOT)
    cluster.rotator.finish(ROOT)
    after = {kind: key_id(cluster.store.certificate(kind)) for kind in AuthorityKind}
    assert all(before[kind] != after[kind] for kind in AuthorityKind)
    root = cluster.store.certificate(ROOT)
    for kind in ISSUING:
        cluster.store.certificate(kind).verify_directly_issued_by(root)
    assert cluster.anchors(cluster.worker) == [after[INTERNAL]]
    assert cluster.anchors(cluster.gateway) == [after[EDGE]]


def test_a_rotation_does_not_advance_while_a_process_lags(cluster: Cluster) -> None:
    cluster.report(cluster.worker)
    cluster.rotator.prepare(INTERNAL)
    with pytest.raises(PeersLag, match=r"cannot be activated: 1 lags.*does not trust the new") as refused:
        cluster.rotator.activate(INTERNAL)
    assert [each.holder.pid for each in refused.value.laggards] == [PID]
    assert phase(cluster) is Phase.PREPARED
    cluster.rotator.activate(INTERNAL, patience=cluster.follow)

    with pytest.raises(PeersLag, match="still presents"):
        cluster.rotator.finish(INTERNAL)
    assert phase(cluster) is Phase.ACTIVE

    # It has its new leaf, and still trusts the old authority when the trust is withdrawn: the key must stay.
    with pytest.raises(PeersLag, match="still trusts"):
        cluster.rotator.finish(INTERNAL, patience=cluster.follow)
    assert phase(cluster) is Phase.FINISHING
    assert RotationStore(cluster.home.pki).others.load(INTERNAL)
    with pytest.raises(RotationRefused, match="nothing to abort"):
        cluster.rotator.abort(INTERNAL)
    cluster.rotator.finish(INTERNAL, last_patience=cluster.follow)
    assert phase(cluster) is Phase.STEADY


def test_a_process_that_has_ended_does_not_hold_up_a_rotation(cluster: Cluster) -> None:
    cluster.report(cluster.worker)
    cluster.rotator.prepare(INTERNAL)
    cluster.running.clear()
    cluster.rotator.activate(INTERNAL)
    assert not list((cluster.worker / DIRECTORY).iterdir())


def test_report_that_cannot_be_read_counts_as_lagging(cluster: Cluster) -> None:
    cluster.report(cluster.worker)
    (cluster.worker / DIRECTORY / f"{PID}.json").write_text("{}")
    cluster.rotator.prepare(INTERNAL)
    with pytest.raises(PeersLag, match="cannot be read"):
        cluster.rotator.activate(INTERNAL)
    name = f"spiffe://{CONFIG.trust_domain}/taskmanager/tm-1"
    cluster.rotator.activate(INTERNAL, without=[name])
    assert phase(cluster) is Phase.ACTIVE


def test_only_a_known_identity_can_be_left_out_of_a_rotation(cluster: Cluster) -> None:
    cluster.rotator.prepare(INTERNAL)
    for name in ("*", "all", f"spiffe://{CONFIG.trust_domain}/taskmanager/tm-2"):
        with pytest.raises(RotationRefused, match="there is no identity called"):
            cluster.rotator.activate(INTERNAL, without=[name])
    assert phase(cluster) is Phase.PREPARED


def test_a_rotation_cannot_finish_while_a_leaf_of_the_old_authority_is_valid(cluster: Cluster) -> None:
    cluster.renewing = False
    cluster.rotator.prepare(INTERNAL)
    cluster.rotator.activate(INTERNAL)
    with pytest.raises(PeersLag, match=r"cannot be ended: 3 lag.*still valid"):
        cluster.rotator.finish(INTERNAL)
    cluster.now += dt.timedelta(hours=25)
    cluster.rotator.finish(INTERNAL)
    assert phase(cluster) is Phase.STEADY, "what has expired is no reason to wait"


def test_a_second_prepare_or_one_of_another_authority_is_refused(cluster: Cluster) -> None:
    cluster.rotator.prepare(INTERNAL)
    with pytest.raises(RotationRefused, match="trusted everywhere already"):
        cluster.rotator.prepare(INTERNAL)
    with pytest.raises(RotationRefused, match="one at a time"):
        cluster.rotator.prepare(EDGE)


def test_a_repeated_prepare_reaches_the_directories_that_the_first_one_missed(cluster: Cluster) -> None:
    old = read_certificates(cluster.worker / CA_FILE)
    cluster.rotator.prepare(INTERNAL)
    new = cluster.trust.anchors(INTERNAL)
    (cluster.worker / CA_FILE).write_bytes(to_pem(*old))
    cluster.rotator.prepare(INTERNAL)
    assert cluster.trust.anchors(INTERNAL) == new
    assert len(cluster.anchors(cluster.worker)) == 2


def test_a_rotation_can_be_aborted_before_and_after_activation(cluster: Cluster) -> None:
    old = key_id(cluster.store.certificate(INTERNAL))
    cluster.rotator.prepare(INTERNAL)
    cluster.rotator.abort(INTERNAL)
    assert (phase(cluster), cluster.anchors(cluster.worker), cluster.issuers()) == (Phase.STEADY, [old], {old})

    cluster.rotator.prepare(INTERNAL)
    cluster.rotator.activate(INTERNAL)
    assert cluster.issuers() != {old}
    cluster.renewing = False
    with pytest.raises(PeersLag, match="still valid"):
        cluster.rotator.abort(INTERNAL)
    assert phase(cluster) is Phase.PREPARED, "the old one signs again, and both are trusted"
    cluster.renewing = True
    cluster.rotator.abort(INTERNAL)
    assert (phase(cluster), cluster.anchors(cluster.worker), cluster.issuers()) == (Phase.STEADY, [old], {old})
    cluster.rotator.prepare(INTERNAL)


def test_key_is_destroyed_unless_it_is_to_be_kept(cluster: Cluster) -> None:
    old = cluster.store.certificate(INTERNAL)
    cluster.rotator.prepare(INTERNAL)
    cluster.rotator.activate(INTERNAL)
    assert cluster.rotator.finish(INTERNAL) == []
    keys = [path for path in cluster.home.pki.rglob("key.pem") if "identities" not in path.parts]
    assert sorted(path.parent.name for path in keys) == ["edge", "internal", "root"]
    assert cluster.store.certificate(INTERNAL) != old

    cluster.rotator.prepare(INTERNAL)
    cluster.rotator.activate(INTERNAL)
    (kept,) = cluster.rotator.finish(INTERNAL, retire=True)
    assert kept.parent == cluster.home.pki / "retired"
    assert (kept / "key.pem").stat().st_mode & 0o777 == 0o600


def test_existing_keys_are_never_overwritten(cluster: Cluster) -> None:
    cluster.rotator.prepare(INTERNAL)
    others = RotationStore(cluster.home.pki).others
    before = (others.directory(INTERNAL) / "key.pem").read_bytes()
    with pytest.raises(RotationRefused, match="under way"):
        RotationStore(cluster.home.pki).begin(INTERNAL, CONFIG, cluster.now)
    assert (others.directory(INTERNAL) / "key.pem").read_bytes() == before


def test_authority_that_could_not_sign_does_not_take_over(cluster: Cluster) -> None:
    cluster.rotator.prepare(INTERNAL)
    (RotationStore(cluster.home.pki).others.directory(INTERNAL) / "key.pem").unlink()
    before = cluster.store.certificate(INTERNAL)
    with pytest.raises(StoreError, match="is not in"):
        cluster.rotator.activate(INTERNAL)
    assert cluster.store.certificate(INTERNAL) == before


def test_new_root_is_not_less_protected_than_the_old(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home").create()
    secret = b"correct horse battery"
    AuthorityStore(home.pki).ensure(CONFIG, utc_now(), root_passphrase=secret)
    rotator = Rotator(home, CONFIG)
    with pytest.raises(RotationRefused, match="has a passphrase"):
        rotator.prepare(ROOT)
    with pytest.raises(StoreError, match="encrypted"):
        rotator.prepare(INTERNAL)
    assert not rotation_directory(home.pki).exists()
    rotator.prepare(ROOT, root_passphrase=secret)
    rotator.activate(ROOT)
    rotator.finish(ROOT)
    assert AuthorityStore(home.pki).is_encrypted(ROOT)
    AuthorityStore(home.pki).load(ROOT, secret)


def test_both_authorities_have_a_crl_while_both_are_trusted(cluster: Cluster) -> None:
    store = RevocationStore(cluster.home.pki, CONFIG, clock=lambda: cluster.now)
    cluster.rotator.prepare(INTERNAL)
    path = cluster.worker / CRL_FILE
    assert path.read_bytes().count(b"BEGIN X509 CRL") == 2
    leaf = read_certificates(cluster.driver / CHAIN_FILE)[0]
    cluster.rotator.activate(INTERNAL)
    # A certificate of the one that does not sign any more is revoked by that one.
    (added,) = store.revoke(INTERNAL, [RevocationTarget.of(leaf)], Reason.SUPERSEDED)
    old = cluster.trust.anchors(INTERNAL)[1]
    current = store.current(INTERNAL, old)
    assert current is not None
    assert list(current.revoked) == [added.number] == [leaf.serial_number]
    assert store.current(INTERNAL) is not None
    assert store.is_revoked(INTERNAL, leaf.serial_number)
    # One of whom nobody knows who signed it is revoked by both.
    store.revoke(INTERNAL, [RevocationTarget(0xABC)], Reason.UNSPECIFIED)
    for anchor in cluster.trust.anchors(INTERNAL):
        found = store.current(INTERNAL, anchor)
        assert found is not None
        assert 0xABC in found.revoked
    cluster.rotator.finish(INTERNAL)
    assert path.read_bytes().count(b"BEGIN X509 CRL") == 1


def test_an_identity_certified_during_a_rotation_gets_both_anchors_and_both_crls(cluster: Cluster) -> None:
    cluster.rotator.prepare(INTERNAL)
    directory = cluster.home.identity(Role.TASKMANAGER, "tm-2")
    cluster.issuer.issue_to(directory, SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-2"))
    assert cluster.anchors(directory) == cluster.anchors(cluster.worker)
    assert (directory / CRL_FILE).read_bytes().count(b"BEGIN X509 CRL") == 2


def test_the_published_bundle_stays_at_a_stable_path_throughout_a_rotation(cluster: Cluster) -> None:
    path = bundle_file(cluster.home.pki, EDGE)
    cluster.trust.publish()
    assert cluster.trust.publish() == []
    seen = [len(x509.load_pem_x509_certificates(path.read_bytes()))]
    for verb in (cluster.rotator.prepare, cluster.rotator.activate, cluster.rotator.finish):
        verb(EDGE)
        seen.append(len(x509.load_pem_x509_certificates(path.read_bytes())))
    assert seen == [1, 2, 2, 1]
    assert x509.load_pem_x509_certificates(path.read_bytes()) == [cluster.store.certificate(EDGE)]


def test_an_identity_of_no_authority_of_this_home_is_reported_as_lagging(cluster: Cluster, tmp_path: Path) -> None:
    stranger = Cluster(tmp_path / "other")
    target = cluster.home.identity(Role.TASKMANAGER, "stranger")
    stranger.worker.rename(target)
    cluster.rotator.prepare(INTERNAL)
    with pytest.raises(PeersLag, match="of an authority of this home"):
        cluster.rotator.activate(INTERNAL)


def test_a_damaged_rotation_state_is_an_error_for_every_reader(cluster: Cluster) -> None:
    cluster.rotator.prepare(INTERNAL)
    path = rotation_directory(cluster.home.pki) / "state.json"
    for content in ("{", json.dumps({**json.loads(path.read_text()), "more": 1}), "[" * 10000):
        path.write_text(content)
        with pytest.raises(StoreError, match="is damaged"):
            cluster.rotator.activate(INTERNAL)
        with pytest.raises(StoreError, match="is damaged"):
            cluster.trust.anchors(INTERNAL)


def test_anchor_added_by_hand_stays(cluster: Cluster, tmp_path: Path) -> None:
    other = AuthorityStore(Cluster(tmp_path / "other").home.pki).certificate(INTERNAL)
    path = cluster.worker / CA_FILE
    path.write_bytes(path.read_bytes() + to_pem(other))
    by_hand, old = key_id(other), key_id(cluster.store.certificate(INTERNAL))
    cluster.rotator.prepare(INTERNAL)
    new = key_id(cluster.trust.anchors(INTERNAL)[1])
    assert cluster.anchors(cluster.worker) == [old, new, by_hand]
    cluster.renewing = False  # a renewal writes ca.pem as the issuer has it
    cluster.rotator.activate(INTERNAL)
    assert cluster.anchors(cluster.worker) == [new, old, by_hand]
