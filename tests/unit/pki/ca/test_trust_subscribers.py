"""The online authority's record of trust subscribers: bounded, by their own reports, rarely written."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core.clock import rfc3339, utc_now
from sluice.core.errors import PeerRefused, StoreError
from sluice.core.files import make_private_directory, write_public, write_secret
from sluice.core.home import Home
from sluice.pki.authorities.rotation_phases import PeersLag, Source
from sluice.pki.ca.protocol import MAX_TOLD, MAX_TRUST_REQUEST_BYTES, TrustRequest
from sluice.pki.ca.subscriber_file import (
    WRITE_SECONDS,
    SubscriberFile,
    read_subscribers,
    subscribers_path,
)
from sluice.pki.ca.trust_subscribers import TrustSubscribers
from sluice.pki.config import PkiConfig
from sluice.pki.enrolment.trust_subscription import question
from sluice.pki.identities.directory import CHAIN_FILE, read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.ledger.file import Ledger, ledger_path
from sluice.pki.ledger.records import IssuanceKind, LedgerRecord, NotedKind
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.trust.reports import (
    DIRECTORY,
    MAX_REPORTS,
    TrustReport,
    is_running,
    write_report,
)
from sluice.pki.x509.profiles import AuthorityKind

CONFIG = PkiConfig()
HOUR = dt.timedelta(hours=1)


def worker(number: int) -> SpiffeId:
    return SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, f"tm-{number}")


class World:
    """A home, certificates issued by it, and a clock."""

    def __init__(self, root: Path) -> None:
        self.home = Home.at(root / "home").create()
        self.now = utc_now()
        self.issuer = LocalIssuer(self.home, CONFIG, clock=lambda: self.now)
        self.issuer.ensure_authorities()
        self.elsewhere = root / "elsewhere"
        self.certificate = self.certify(1)
        self.path = subscribers_path(self.home.pki)

    def certify(self, number: int) -> x509.Certificate:
        """Issue a certificate to a machine that has no directory in this home."""
        self.issuer.issue_to(self.elsewhere / str(number), worker(number))
        return read_certificates(self.elsewhere / str(number) / CHAIN_FILE)[0]

    def file(self) -> SubscriberFile:
        return SubscriberFile(self.home.pki, clock=lambda: self.now)

    def subscribers(self, most: int) -> TrustSubscribers:
        return TrustSubscribers(clock=lambda: self.now, most=most)

    def rotator(self) -> Rotator:
        return Rotator(self.home, CONFIG, clock=lambda: self.now)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def told(number: int = 1, *, anchor: str = "aa", identity: SpiffeId | None = None, pid: int = 7) -> TrustReport:
    return TrustReport(
        pid=pid,
        started=1.0,
        identity=str(identity or worker(number)),
        program="taskmanager",
        leaf="0" * 64,
        issuer=anchor,
        anchors=(anchor,),
        crls={},
        loaded_at=dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
    )


def test_the_latest_report_of_each_subscriber_is_recorded(world: World) -> None:
    subscribers = world.subscribers(8)
    subscribers.heard(worker(1), world.certificate, "192.0.2.1", TrustRequest(in_use=(told(),)))
    subscribers.heard(worker(2), world.certificate, "192.0.2.2", TrustRequest(in_use=(told(2),)))
    world.now += HOUR
    subscribers.heard(worker(1), world.certificate, "192.0.2.3", TrustRequest(in_use=(told(anchor="bb"),)))
    one, two = subscribers.record()[0].subscribers
    assert (one.heard_at, one.address, one.in_use[0].anchors) == (world.now, "192.0.2.3", ("bb",))
    assert (two.heard_at, two.address, two.in_use[0].anchors) == (world.now - HOUR, "192.0.2.2", ("aa",))


def test_a_report_for_another_identity_is_refused(world: World) -> None:
    subscribers = world.subscribers(8)
    asked = TrustRequest(in_use=(told(), told(2)))
    with pytest.raises(PeerRefused, match="reports for another"):
        subscribers.heard(worker(1), world.certificate, "", asked)
    assert subscribers.record()[0].subscribers == ()


def test_a_subscriber_over_the_limit_displaces_nobody_and_marks_the_record_incomplete(world: World) -> None:
    subscribers = world.subscribers(2)
    for number in (1, 2, 3):
        subscribers.heard(worker(number), world.certificate, "", TrustRequest(in_use=(told(number),)))
    record, _ = subscribers.record()
    assert [each.identity for each in record.subscribers] == [str(worker(1)), str(worker(2))]
    assert record.incomplete_at == world.now
    # Those who are known are heard on, and who has expired makes room.
    subscribers.heard(worker(2), world.certificate, "", TrustRequest(in_use=(told(2, anchor="bb"),)))
    world.now = world.certificate.not_valid_after_utc + HOUR
    subscribers.heard(worker(3), world.certify(3), "", TrustRequest(in_use=(told(3),)))
    assert [each.identity for each in subscribers.record()[0].subscribers] == [str(worker(3))]


def test_subscribers_survive_a_restart_and_new_times_alone_are_written_rarely(world: World) -> None:
    file = world.file()
    assert not file.keep(), "nobody follows"
    file.subscribers.heard(worker(1), world.certificate, "192.0.2.1", TrustRequest(in_use=(told(),)))
    assert file.keep()
    assert world.path.stat().st_mode & 0o777 == 0o600
    written = world.now
    for _ in range(3):
        world.now += dt.timedelta(seconds=WRITE_SECONDS / 4)
        file.subscribers.heard(worker(1), world.certificate, "192.0.2.1", TrustRequest(in_use=(told(),)))
        assert not file.keep(), "a time alone is no reason to write"
    assert read_subscribers(world.home.pki).subscribers[0].heard_at == written
    world.now += dt.timedelta(seconds=WRITE_SECONDS)
    file.subscribers.heard(worker(1), world.certificate, "192.0.2.1", TrustRequest(in_use=(told(),)))
    assert file.keep()
    file.subscribers.heard(worker(1), world.certificate, "192.0.2.1", TrustRequest(in_use=(told(anchor="bb"),)))
    assert file.keep(), "what it holds has changed"
    assert not file.keep(at_once=True), "nothing has"
    assert world.file().subscribers.record()[0] == read_subscribers(world.home.pki) == file.subscribers.record()[0]


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 10_000, b'{"followers":[{}]}', b'{"more":1}', b"\xff"])
def test_a_damaged_record_stops_the_rotation_until_subscribers_have_reported_again(
    content: bytes, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    make_private_directory(world.path.parent)
    write_secret(world.path, content)
    rotator = world.rotator()
    rotator.prepare(AuthorityKind.INTERNAL)
    with pytest.raises(PeersLag, match="is damaged"):
        rotator.activate(AuthorityKind.INTERNAL)
    with caplog.at_level(logging.ERROR):
        world.file().keep()
    assert "the record of trust subscribers is lost" in caplog.text
    with pytest.raises(PeersLag, match="not all subscribers"):
        rotator.activate(AuthorityKind.INTERNAL)
    # All who live have told again by then.
    world.now += dt.timedelta(minutes=2)
    rotator.activate(AuthorityKind.INTERNAL)


def test_a_record_that_others_can_read_is_not_used(world: World) -> None:
    make_private_directory(world.path.parent)
    write_public(world.path, b"{}")
    with pytest.raises(StoreError, match="mode 0644"):
        read_subscribers(world.home.pki)
    [holder] = [each for each in world.rotator().holders() if each.source is Source.FOLLOWER]
    assert "mode 0644" in holder.problem


def test_a_rotation_skips_a_stopped_subscriber_that_is_named_or_revoked(world: World) -> None:
    file = world.file()
    file.subscribers.heard(worker(1), world.certificate, "192.0.2.1", TrustRequest(in_use=(told(),)))
    file.keep()
    rotator = world.rotator()
    world.now += HOUR
    rotator.prepare(AuthorityKind.INTERNAL)
    with pytest.raises(PeersLag, match=rf"{worker(1)} at 192.0.2.1: no report since"):
        rotator.activate(AuthorityKind.INTERNAL)
    for verb in (rotator.activate, rotator.abort):
        verb(AuthorityKind.INTERNAL, without=[str(worker(1))])
    rotator.prepare(AuthorityKind.INTERNAL)
    store = RevocationStore(world.home.pki, CONFIG, clock=lambda: world.now)
    store.revoke(
        AuthorityKind.INTERNAL, [RevocationTarget.of(world.certificate, str(worker(1)))], Reason.KEY_COMPROMISE
    )
    for step in (rotator.activate, rotator.finish):
        step(AuthorityKind.INTERNAL)


def test_the_trust_request_reports_all_processes_of_the_identity(tmp_path: Path) -> None:
    pid = 1
    assert is_running(pid)
    assert question(tmp_path, str(worker(1)), "v") == TrustRequest(known="v")
    write_report(tmp_path, told(pid=pid))
    place = tmp_path / DIRECTORY / f"{pid}.json"
    assert question(tmp_path, str(worker(1)), "v") == TrustRequest(known="v", in_use=(told(pid=pid),))
    assert question(tmp_path, str(worker(2)), "v") == TrustRequest(known="v", unreadable=1), "of somebody else"
    place.write_text("{")
    assert question(tmp_path, str(worker(1)), "v") == TrustRequest(known="v", unreadable=1)


WHOLE = msgspec.to_builtins(TrustRequest(in_use=(told(),)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"started": 1e999}, id="endless"),
        pytest.param({"started": -1}, id="before the epoch"),
        pytest.param({"program": "\x1b[2J"}, id="what would move the terminal's cursor"),
        pytest.param({"program": "taskmanager\n"}, id="a line of its own"),
        pytest.param({"program": "x" * 65}, id="a long name"),
        pytest.param({"anchors": ["aa"] * 33}, id="many anchors"),
        pytest.param({"anchors": ["zz"]}, id="no key identifier"),
        pytest.param({"crls": {"aa": -1}}, id="a list before the first"),
        pytest.param({"pid": 0}, id="no process"),
        pytest.param({"loaded_at": "2026-11-21T05:00:00"}, id="a time of no zone"),
        pytest.param({"more": 1}, id="an unknown field"),
    ],
)
def test_a_malformed_report_is_refused(change: dict[str, object]) -> None:
    body = {**WHOLE, "in_use": [{**WHOLE["in_use"][0], **change}]}
    msgspec.convert(WHOLE, TrustRequest)
    text = msgspec.json.encode(body).replace(b'"started":null', b'"started":1e999')
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=TrustRequest)


def test_reports_that_exceed_the_limit_of_a_request_count_as_unreadable(tmp_path: Path) -> None:
    for pid in range(1, MAX_TOLD + 3):
        write_report(tmp_path, told(pid=pid))
    asked = question(tmp_path, str(worker(1)), "v", alive=lambda *_: True)
    assert (len(asked.in_use), asked.unreadable) == (MAX_TOLD, 2)
    assert len(msgspec.json.encode(asked)) < MAX_TRUST_REQUEST_BYTES / 4
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"in_use": [msgspec.to_builtins(told())] * (MAX_TOLD + 1)}, TrustRequest)


def test_reports_that_are_too_large_for_a_request_count_as_unreadable(tmp_path: Path) -> None:
    large = msgspec.structs.replace(told(), anchors=("ab" * 64,) * 32)
    for pid in range(1, MAX_TOLD + 1):
        write_report(tmp_path, msgspec.structs.replace(large, pid=pid))
    asked = question(tmp_path, str(worker(1)), "v", alive=lambda *_: True)
    assert asked == TrustRequest(known="v", unreadable=MAX_TOLD)


def test_more_report_files_than_are_read_count_as_unreadable(tmp_path: Path) -> None:
    place = tmp_path / DIRECTORY
    place.mkdir()
    for pid in range(1, MAX_REPORTS + 2):
        (place / f"{pid}.json").touch()
    assert question(tmp_path, str(worker(1)), "v") == TrustRequest(known="v", unreadable=1)


def ledgered(world: World, kind: IssuanceKind | NotedKind, number: int) -> x509.Certificate:
    """Issue a certificate to a remote machine that never asked for trust, and record it in the ledger."""
    certificate = world.certify(number)
    ledger = Ledger(ledger_path(world.home.pki), clock=lambda: world.now)
    ledger.append(
        LedgerRecord(
            event="issued",
            kind=kind,
            identity=str(worker(number)),
            serial=f"{certificate.serial_number:x}",
            not_after=rfc3339(certificate.not_valid_after_utc),
        )
    )
    ledger.close()
    return certificate


@pytest.mark.parametrize(
    ("kind", "subject", "waits"),
    [
        pytest.param("enrolment", AuthorityKind.INTERNAL, True, id="its authority"),
        pytest.param("edge-renewal", AuthorityKind.EDGE, True, id="its authority, the edge's"),
        pytest.param("enrolment", AuthorityKind.ROOT, True, id="all"),
        pytest.param("edge-renewal", AuthorityKind.ROOT, True, id="all, for the edge"),
        pytest.param("enrolment", AuthorityKind.EDGE, False, id="the other one"),
        pytest.param("edge-renewal", AuthorityKind.INTERNAL, False, id="the other one, for the edge"),
        pytest.param("authority", AuthorityKind.INTERNAL, False, id="an authority has no leaf"),
    ],
)
def test_a_rotation_waits_only_for_ledger_leaves_of_the_authority_to_be_removed(
    kind: IssuanceKind | NotedKind, subject: AuthorityKind, *, waits: bool, world: World
) -> None:
    ledgered(world, kind, 5)
    rotator = world.rotator()
    rotator.prepare(subject)
    rotator.activate(subject)
    if waits:
        with pytest.raises(PeersLag, match=r"1 lags.*tm-5: its certificate is of the authority to be removed"):
            rotator.finish(subject)
        rotator.finish(subject, without=[str(worker(5))])
    else:
        rotator.finish(subject)


def test_a_rotation_skips_a_revoked_ledger_certificate_but_not_its_predecessor(world: World) -> None:
    store = RevocationStore(world.home.pki, CONFIG, clock=lambda: world.now)
    first, second = ledgered(world, "enrolment", 5), ledgered(world, "renewal", 5)
    rotator = world.rotator()
    rotator.prepare(AuthorityKind.INTERNAL)
    rotator.activate(AuthorityKind.INTERNAL)
    for certificate, step in ((second, "ledger record 1"), (first, "")):
        store.revoke(AuthorityKind.INTERNAL, [RevocationTarget.of(certificate)], Reason.SUPERSEDED)
        assert [each.holder.place for each in rotator.waiting_for()] == [step] * bool(step)
