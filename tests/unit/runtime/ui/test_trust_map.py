"""The trust map: summaries of the evidence, what deserves attention, and where it is drawn."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import msgspec
import pytest

from sluice.core.home import Home
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.connections import describe_certificate
from sluice.pki.x509.key_identifiers import key_id
from sluice.runtime.messages import ConnectionEvidence
from sluice.runtime.rest.audit_summary import (
    AuditSummary,
    Examined,
    read_summary,
    summary_file,
)
from sluice.runtime.rest.trust_facts import (
    Anchor,
    TrustFacts,
    anchor_tone,
    trust_facts,
)
from sluice.runtime.spark.evidence import EVIDENCE_FILE, read_evidence
from sluice.runtime.ui.trust_map import Link, TrustMap, trust_map
from sluice.runtime.ui.trust_members import ended_of, of_active_jobs, registered
from sluice.runtime.ui.trust_picture import Picture, draw
from sluice.runtime.ui.trust_warnings import MAX_CONCERNS, trust_warnings
from tests.simulated_cluster import (
    HOUR,
    SimulatedDispatcher,
    SimulatedResourceManager,
    SimulatedShuffle,
    certificate,
    evidence,
    spiffe,
)

NOW = 1_800_000_000.0
JM, TM = spiffe("jobmanager/jm-1"), spiffe("taskmanager/tm-1")


def of_cluster(count: int) -> TrustMap:
    manager = SimulatedResourceManager(count, now=NOW)
    entries = asyncio.run(manager.connections()).connections
    return trust_map(entries, now=NOW, local=[("rest", spiffe("gateway/envoy"), JM)])


def only(found: TrustMap, channel: str) -> Link:
    (link,) = [each for each in found.links if each.channel == channel]
    return link


def test_evidence_of_both_ends_of_a_connection_is_one_link() -> None:
    theirs, own = certificate(1, begun=NOW - HOUR), certificate(2, begun=NOW - 2 * HOUR)
    seen = (evidence("rpc", JM, TM, "accepted", theirs, NOW - 9), evidence("rpc", TM, JM, "dialed", own, NOW - 9))
    found = trust_map(seen, now=NOW)
    link = only(found, "rpc")
    assert (found.groups[link.dialer].title, found.groups[link.listener].title) == ("tm-1", "jm-1")
    assert (link.protocols, link.count, link.tone, link.concerns) == (("TLSv1.3",), 1, "ok", ())
    assert {each.name: each.certificate for each in found.processes} == {"tm-1": theirs, "jm-1": own}


def test_the_latest_certificate_of_a_process_counts() -> None:
    old, new = certificate(1, begun=NOW - 30 * HOUR), certificate(2, begun=NOW - HOUR)
    for order in ((old, new), (new, old)):
        found = trust_map([evidence("rpc", JM, TM, "accepted", each, NOW) for each in order], now=NOW)
        assert next(each for each in found.processes if each.name == "tm-1").certificate == new


@pytest.mark.parametrize(
    ("hours", "tone", "concern"),
    [
        (2, "ok", ""),
        (13, "ok", ""),
        (16, "warn", "not renewed"),
        (23, "bad", "not renewed"),
        (25, "bad", "has expired"),
    ],
)
def test_the_tone_of_a_link_depends_on_the_age_of_the_certificate(hours: float, tone: str, concern: str) -> None:
    link = only(
        trust_map([evidence("rpc", JM, TM, "accepted", certificate(1, begun=NOW - hours * HOUR), NOW)], now=NOW), "rpc"
    )
    assert link.tone == tone
    assert concern in " ".join(link.concerns)
    assert bool(link.concerns) is bool(concern)


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1", ""])
def test_a_link_with_an_older_or_unknown_tls_version_is_bad(protocol: str) -> None:
    seen = [evidence("rpc", JM, TM, "accepted", certificate(1, begun=NOW - 1), NOW, protocol=protocol)]
    link = only(trust_map(seen, now=NOW), "rpc")
    assert link.tone == "bad"
    assert "instead of TLSv1.3" in link.concerns[0]


def test_malformed_evidence_written_by_a_job_is_shown_without_an_error() -> None:
    odd = [
        ConnectionEvidence(channel="x" * 500, local=local, peer=peer, direction="up", protocol="", cipher="")
        for local, peer in (("", ""), ("nonsense", "spiffe://"), ("spiffe://td/root/../x", '"><script>'), (JM, JM))
    ]
    found = trust_map(odd, now=NOW)
    assert {each.role for each in found.processes} == {"jobmanager", "unknown"}
    assert all(len(each.key) == 14 for each in found.processes)
    draw(found)
    draw(found, of_a_job=True)


def test_a_unix_socket_link_is_local_unless_there_is_evidence_of_tls() -> None:
    local = [("rest", spiffe("gateway/envoy"), JM)]
    assert only(trust_map((), now=NOW, local=local), "rest").local
    seen = [evidence("rest", JM, spiffe("gateway/envoy"), "accepted", certificate(1, begun=NOW), NOW)]
    assert not only(trust_map(seen, now=NOW, local=local), "rest").local


def test_links_are_complemented_with_results_of_the_last_audit() -> None:
    there = Examined(name="rpc", channel="rpc", process="jobmanager", version="TLSv1.3", group="X25519MLKEM768")
    audit = AuditSummary(at=NOW, checks=9, findings={"high": 1, "low": 2}, listeners=(there,))
    seen = [evidence(channel, JM, TM, "accepted", certificate(1, begun=NOW), NOW) for channel in ("rpc", "blob")]
    found = trust_map(seen, now=NOW, audit=audit)
    assert only(found, "rpc").examined == there
    assert only(found, "blob").examined is None
    assert audit.total == 3


def test_an_unreadable_audit_summary_is_read_as_none(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert read_summary(home) is None
    summary_file(home).parent.mkdir()
    for content in (b"", b"{}", b"\xff", b"[" * 100_000):
        summary_file(home).write_bytes(content)
        assert read_summary(home) is None


@pytest.mark.parametrize("count", [0, 1, 5, 7, 200])
def test_all_boxes_and_dots_of_the_map_have_distinct_places(count: int) -> None:
    picture = draw(of_cluster(count))
    inside(picture)
    members = [each for box in picture.boxes for each in box.group.members]
    assert len(members) == count + 2
    if count > 6:
        (many,) = [box for box in picture.boxes if box.dots]
        assert len(many.dots) == count
        assert len({(dot.x, dot.y) for dot in many.dots}) == count


def test_a_job_is_drawn_with_all_its_channels() -> None:
    dispatcher = SimulatedDispatcher(1, 0, now=NOW)
    entries = asyncio.run(dispatcher.job_connections(next(iter(dispatcher.details)))).connections
    picture = draw(trust_map(entries, now=NOW), of_a_job=True)
    inside(picture)
    assert sorted(box.group.role for box in picture.boxes) == ["driver", "executor", "executor", "jobmanager"]
    assert sorted(line.tag for line in picture.lines) == ["blob", "blob", "data", "data", "data", "rpc"]


def inside(picture: Picture) -> None:
    """Check that all boxes and line labels are inside the picture and that no boxes overlap."""
    for box in picture.boxes:
        assert 0 <= box.x <= box.right <= picture.width
        assert 0 <= box.y <= box.bottom <= picture.height
        for other in picture.boxes:
            apart = box.right <= other.x or other.right <= box.x or box.bottom <= other.y or other.bottom <= box.y
            assert other is box or apart
    for line in picture.lines:
        assert 0 < line.tag_x < picture.width
        assert 0 < line.tag_y < picture.height


def test_trust_facts_of_a_jobmanager_are_read_from_its_identity(tmp_path: Path) -> None:
    issuer = LocalIssuer(tmp_path, PkiConfig(trust_domain="td"))
    issuer.ensure_authorities()
    issuer.issue_to(tmp_path / "id", SpiffeId.process("td", Role.JOBMANAGER, "jm-1"))
    loaded, _ = read_identity(tmp_path / "id")
    facts = trust_facts("me", loaded.leaf, loaded.anchors)
    now = dt.datetime.now(dt.UTC).timestamp()
    (anchor,) = facts.anchors
    assert facts.own is not None
    assert (facts.phase, anchor.signs, anchor.algorithm) == ("A", True, "EC P-256")
    assert facts.anchor(facts.own.issuer) is anchor
    assert facts.anchor("00") is None
    assert facts.own.not_after > now
    assert [anchor_tone(anchor, anchor.not_after - days * 86400) for days in (100, 20, -1)] == ["ok", "warn", "bad"]


def test_the_rotation_phase_is_derived_from_anchors_and_signer(tmp_path: Path) -> None:
    anchors = []
    for name in ("old", "new"):
        issuer = LocalIssuer(tmp_path / name, PkiConfig(trust_domain="td"))
        issuer.ensure_authorities()
        issuer.issue_to(tmp_path / f"{name}-id", SpiffeId.process("td", Role.JOBMANAGER, "jm-1"))
        loaded, _ = read_identity(tmp_path / f"{name}-id")
        anchors.append((loaded.leaf, loaded.anchors[0]))
    both = [anchor for _, anchor in anchors]
    newest = max(range(2), key=lambda each: both[each].not_valid_before_utc)
    phases = {trust_facts("me", leaf, both).phase for leaf, _ in anchors}
    assert trust_facts("me", anchors[newest][0], both).phase == "B+A"
    assert phases <= {"A+B", "B+A"}


def test_certificate_evidence_matches_the_certificate(tmp_path: Path) -> None:
    issuer = LocalIssuer(tmp_path, PkiConfig(trust_domain="td"))
    issuer.ensure_authorities()
    issuer.issue_to(tmp_path / "id", SpiffeId.process("td", Role.TASKMANAGER, "tm-1"))
    loaded, _ = read_identity(tmp_path / "id")
    shown = describe_certificate(loaded.leaf)
    assert int(shown.serial, 16) == loaded.leaf.serial_number
    assert shown.issuer == key_id(loaded.anchors[0])
    assert shown.not_after == loaded.leaf.not_valid_after_utc.timestamp()
    assert shown.key == "EC P-256"


def test_jvm_evidence_is_read_with_and_without_certificate(tmp_path: Path) -> None:
    """Lines of an older JVM have no certificate, and a malformed certificate is left out."""
    line = '{"channel":"data","local":"a","peer":"b","direction":"dialed","protocol":"TLSv1.3","cipher":"c"'
    shown = '{"serial":"7f","issuer":"5a","not_before":1,"not_after":2,"key":"EC P-256"}'
    (tmp_path / EVIDENCE_FILE).write_text(
        f'{line}}}\n{line},"certificate":{shown}}}\n{line},"certificate":{{"serial":7}}}}\n{line},"certificate":'
    )
    first, second = read_evidence(tmp_path).connections
    assert first.certificate is None
    assert second.certificate is not None
    assert (second.certificate.serial, second.certificate.not_after) == ("7f", 2)


def facts_with(*anchors: Anchor, findings: int | None = None) -> TrustFacts:
    summary = None
    if findings is not None:
        summary = AuditSummary(at=NOW - 60, checks=400, findings={"high": findings} if findings else {}, listeners=())
    return TrustFacts(JM, None, anchors, "A" if len(anchors) < 2 else "B+A", "", summary)


def authority(key: str, *, left: float, signs: bool = True) -> Anchor:
    return Anchor(key, "CN=internal", "1", "EC P-256", NOW - 300 * 24 * HOUR, NOW + left, signs)


def test_trust_warnings_name_expired_certificates_audit_findings_and_ending_authorities() -> None:
    good, late = certificate(1, begun=NOW - HOUR), certificate(2, begun=NOW - 25 * HOUR)
    fine = trust_map((evidence("rpc", JM, TM, "accepted", good, NOW - 9),), now=NOW)
    year = authority("a", left=300 * 24 * HOUR)
    assert trust_warnings(fine, facts_with(year, findings=0), NOW) == ()
    seen = (evidence("rpc", JM, TM, "accepted", late, NOW - 9), evidence("blob", JM, TM, "accepted", late, NOW - 9))
    found = trust_warnings(trust_map(seen, now=NOW), facts_with(authority("a", left=9 * HOUR), findings=2), NOW)
    assert [(each.tone, each.text) for each in found] == [
        ("bad", "The certificate of taskmanager/tm-1 has expired (blob)."),
        ("bad", "The last audit had 2 findings."),
        ("warn", "The signing authority: 9 h left. Rotate it."),
    ]


def test_only_the_expiry_of_a_signing_authority_is_a_warning() -> None:
    fine = trust_map((), now=NOW)
    rotating = facts_with(authority("b", left=300 * 24 * HOUR), authority("a", left=HOUR, signs=False))
    assert trust_warnings(fine, rotating, NOW) == ()
    (expired,) = trust_warnings(fine, facts_with(authority("a", left=-1)), NOW)
    assert (expired.tone, expired.text) == ("bad", "The signing authority: expired. Rotate it.")


def test_trust_warnings_list_the_first_concerns_and_count_the_rest() -> None:
    old = certificate(1, begun=NOW - 25 * HOUR)
    seen = [evidence("rpc", JM, spiffe(f"{role}/x-1"), "accepted", old, NOW - 9) for role in ("taskmanager", "auth")]
    seen += [evidence(f"c{n}", JM, spiffe(f"gateway/g-{n}"), "accepted", old, NOW - 9) for n in range(5)]
    found = trust_warnings(trust_map(seen, now=NOW), facts_with(findings=1), NOW)
    assert len(found) == MAX_CONCERNS + 1
    assert found[-1].text == "And 2 more, on the trust map."


def test_processes_of_ended_jobs_are_not_on_the_map_of_the_cluster() -> None:
    dispatcher = SimulatedDispatcher(1, 5, now=NOW)
    jobs = asyncio.run(dispatcher.jobs())
    running, ended = jobs[0].id, jobs[-1].id
    old = certificate(1, begun=NOW - 30 * HOUR)
    seen = [evidence("rpc", JM, TM, "accepted", certificate(2, begun=NOW), NOW)]
    drivers = [spiffe(f"job/{job}/driver") for job in (running, ended, "f" * 32)]
    seen += [evidence("rpc", JM, driver, "accepted", old, NOW) for driver in drivers]
    kept, omitted = of_active_jobs(seen, jobs)
    assert {each.peer for each in kept} == {TM, spiffe(f"job/{running}/driver")}
    assert omitted == 2
    assert of_active_jobs([evidence("rpc", JM, "no identity", "accepted", old, NOW)], ())[1] == 0


def test_links_of_ended_processes_are_idle_and_without_concerns() -> None:
    dispatcher = SimulatedDispatcher(1, 1, now=NOW)
    details = asyncio.run(dispatcher.jobs())
    entries = asyncio.run(dispatcher.job_connections(details[-1].id)).connections
    job = asyncio.run(dispatcher.job(details[-1].id))
    ended = ended_of(job, {one for each in entries for one in (each.local, each.peer)})
    found = trust_map(entries, now=NOW + 100 * HOUR, ended=ended)
    assert {each.role for each in found.processes if each.ended} == {"driver", "executor"}
    assert {(each.tone, each.ended, each.concerns) for each in found.links} == {("idle", True, ())}
    # An executor of a running job that has exited is gone; its driver and the others are not.
    running = asyncio.run(dispatcher.job(details[0].id))
    gone = msgspec.structs.replace(running.executors[1], state="EXITED")
    running = msgspec.structs.replace(running, executors=(running.executors[0], gone))
    entries = asyncio.run(dispatcher.job_connections(running.id)).connections
    names = {one for each in entries for one in (each.local, each.peer)}
    assert ended_of(running, names) == {spiffe(f"job/{running.id}/executor/2")}


def test_a_link_of_an_ended_process_with_an_older_tls_version_is_bad() -> None:
    seen = [evidence("rpc", JM, TM, "accepted", certificate(1, begun=NOW), NOW, protocol="TLSv1.2")]
    assert only(trust_map(seen, now=NOW, ended={TM}), "rpc").tone == "bad"


def test_shuffle_workers_that_are_registered_are_on_the_map() -> None:
    service = asyncio.run(SimulatedShuffle(SimulatedDispatcher(1, 0, now=NOW)).overview())
    found = trust_map((), now=NOW, registered=registered(service, "gateway.test"))
    picture = draw(found)
    inside(picture)
    assert {each.name: (each.state, each.tone) for each in found.processes if each.role == "shuffle-worker"} == {
        "sw-1": ("active", "idle"),
        "sw-2": ("active", "idle"),
        "sw-3": ("excluded", "warn"),
        "sw-4": ("draining", "idle"),
    }
    assert {found.groups[each.listener].title for each in found.links} == {"sm-1"}
    assert [tier.title for tier in picture.tiers] == ["Control", "Shuffle"]
