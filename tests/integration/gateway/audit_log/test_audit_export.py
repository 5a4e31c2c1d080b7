"""Exports the audit log over real TLS to external receivers: friendly, slow, broken and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from sluice.core import REGISTRY, StoreError
from sluice.core.home import Home
from sluice.gateway.audit_export import assembly, exporter as exporter_module, exporting
from sluice.gateway.audit_export.assembly import cursor_path
from sluice.gateway.audit_export.cursor import CursorFile
from sluice.gateway.audit_export.reader import Message, signed_end
from sluice.gateway.audit_export.senders import DeliveryFailed, create_sender
from sluice.gateway.audit_log import maintenance
from sluice.gateway.audit_log.access_log_reader import access_file
from sluice.gateway.audit_log.chain import AuditRecord, verify
from sluice.gateway.audit_log.keys import VERIFICATION_KEY, VerificationKey
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits, audit_directory, audit_file
from sluice.gateway.audit_log.maintenance import maintaining
from sluice.gateway.audit_log.segments import CHECKPOINT
from sluice.gateway.config import AuditExportConfig
from tests.audit_receivers import (
    Behaviour,
    HttpReceiver,
    SyslogReceiver,
    close_unread,
    hang,
    read_and_answer,
    read_and_close,
    reset_in_the_middle,
    server_context,
    serving_https,
)
from tests.command import sluice
from tests.outside import OutsideAuthority
from tests.waiting import until

SOON = 1.0
"""Seconds after which a receiver that hangs is given up."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OutsideAuthority:
    return OutsideAuthority(tmp_path_factory.mktemp("receiver"))


@pytest.fixture(scope="module")
def identity(authority: OutsideAuthority) -> Path:
    return authority.issue("localhost")


@pytest.fixture
def syslog(identity: Path) -> Iterator[SyslogReceiver]:
    with SyslogReceiver(server_context(identity)).serving() as receiver:
        yield receiver


def to_syslog(receiver: SyslogReceiver, authority: OutsideAuthority, **more: Any) -> AuditExportConfig:
    settings = {"url": f"tls://localhost:{receiver.port}", "ca_file": str(authority.ca_file), **more}
    return AuditExportConfig(name="siem", kind="syslog", **settings)


def messages(count: int, size: int = 100) -> list[Message]:
    records = [AuditRecord(event="decision", sequence=n + 1, path="/" + "x" * size) for n in range(count)]
    return [Message(each, msgspec.json.encode(each)) for each in records]


@pytest.mark.parametrize("behaviour", [read_and_answer, read_and_close])
@pytest.mark.parametrize("size", [100, 8000])
async def test_syslog_is_delivered_when_the_receiver_has_read_to_the_end(
    syslog: SyslogReceiver, authority: OutsideAuthority, behaviour: Behaviour, size: int
) -> None:
    syslog.behaviour = behaviour
    sender = create_sender(to_syslog(syslog, authority))
    sent = messages(300, size)
    for begin in (0, 100, 200):
        await sender.send(sent[begin : begin + 100])
    assert [each.rpartition(b" - ")[2] for each in syslog.messages] == [each.data for each in sent]
    assert not syslog.problems


@pytest.mark.parametrize("behaviour", [hang, reset_in_the_middle, close_unread])
@pytest.mark.parametrize("size", [10, 15_000])
async def test_syslog_is_not_delivered_when_the_receiver_has_not_read_to_the_end(
    syslog: SyslogReceiver, authority: OutsideAuthority, behaviour: Behaviour, size: int
) -> None:
    syslog.behaviour = behaviour
    limit = {"seconds": SOON} if behaviour is hang else {}
    with pytest.raises(DeliveryFailed, match="did not read to the end"):
        await create_sender(to_syslog(syslog, authority), **limit).send(messages(200, size))


async def test_a_receiver_with_a_wrong_certificate_or_an_old_tls_version_gets_nothing(
    identity: Path, authority: OutsideAuthority, tmp_path: Path
) -> None:
    old = server_context(identity)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    impostors = {
        "another host": server_context(authority.issue("siem.example.org")),
        "another authority": server_context(OutsideAuthority(tmp_path / "other").issue("localhost")),
        "an old version": old,
    }
    for name, context in impostors.items():
        with SyslogReceiver(context).serving() as receiver:
            with pytest.raises(DeliveryFailed):
                await create_sender(to_syslog(receiver, authority), seconds=SOON).send(messages(1))
            assert not receiver.messages, name
        http = HttpReceiver()
        async with http.serving(context) as url:
            to = AuditExportConfig(name="siem", kind="webhook", url=url, ca_file=str(authority.ca_file))
            with pytest.raises(DeliveryFailed):
                await create_sender(to, seconds=SOON).send(messages(1))
            assert not http.requests, name


async def test_a_receiver_can_demand_a_client_certificate(
    identity: Path, authority: OutsideAuthority, tmp_path: Path
) -> None:
    clients = OutsideAuthority(tmp_path / "clients")
    ours = clients.issue("gateway.example.com")
    own = {"certificate_file": str(ours / "chain.pem"), "key_file": str(ours / "key.pem")}
    with SyslogReceiver(server_context(identity, clients.ca_file)).serving() as receiver:
        await create_sender(to_syslog(receiver, authority, **own)).send(messages(3))
        assert len(receiver.messages) == 3
        with pytest.raises(DeliveryFailed):
            await create_sender(to_syslog(receiver, authority)).send(messages(3))
        foreign = authority.issue("gateway.example.com")
        wrong = {"certificate_file": str(foreign / "chain.pem"), "key_file": str(foreign / "key.pem")}
        with pytest.raises(DeliveryFailed):
            await create_sender(to_syslog(receiver, authority, **wrong)).send(messages(3))
        (ours / "key.pem").chmod(0o644)
        with pytest.raises(StoreError, match="others can read this secret"):
            await create_sender(to_syslog(receiver, authority, **own)).send(messages(3))
        assert len(receiver.messages) == 3


async def test_sending_to_a_syslog_receiver_that_is_down_fails(authority: OutsideAuthority, identity: Path) -> None:
    with SyslogReceiver(server_context(identity)).serving() as receiver:
        gone = to_syslog(receiver, authority)
    with pytest.raises(DeliveryFailed):
        await create_sender(gone).send(messages(1))


async def test_a_webhook_receives_records_with_its_token_and_every_failed_delivery_is_an_error(
    authority: OutsideAuthority, identity: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("very-secret\n")
    receiver, sent = HttpReceiver(), messages(5)
    async with receiver.serving(server_context(identity)) as url:
        ca = str(authority.ca_file)
        sender = create_sender(
            AuditExportConfig(name="siem", kind="webhook", url=url, ca_file=ca, token_file=str(token))
        )
        await sender.send(sent)
        ((headers, body),) = receiver.requests
        assert (headers["authorization"], headers["content-type"]) == ("Bearer very-secret", "application/x-ndjson")
        assert body == b"".join(each.data + b"\n" for each in sent)
        for status in (302, 307, 400, 413, 500, 503):
            receiver.answer = status
            with pytest.raises(DeliveryFailed, match=f"answered {status}"):
                await sender.send(sent)

        def reset(request: web.BaseRequest) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        receiver.answer = reset
        with pytest.raises(DeliveryFailed, match="did not confirm"):
            await sender.send(sent)
        for bad in ("", "two words", "line\nline"):
            token.write_text(bad)
            with pytest.raises(StoreError, match="no bearer token"):
                await sender.send(sent)
        token.chmod(0o644)
        with pytest.raises(StoreError, match="others can read this secret"):
            await sender.send(sent)
    assert len(receiver.requests) == 1


async def test_the_number_of_records_that_an_otlp_receiver_rejects_is_returned(
    authority: OutsideAuthority, identity: Path
) -> None:
    receiver = HttpReceiver(answer=lambda _: web.json_response({"partialSuccess": {"rejectedLogRecords": "2"}}))
    async with receiver.serving(server_context(identity)) as url:
        to = AuditExportConfig(name="siem", kind="otlp", url=url, ca_file=str(authority.ca_file))
        assert await create_sender(to).send(messages(5)) == 2
        receiver.answer = lambda _: web.Response(body=b"x" * (1 << 20))
        with pytest.raises(DeliveryFailed, match="more than"):
            await create_sender(to).send(messages(5))


async def test_sending_to_a_web_server_that_hangs_fails_in_time(authority: OutsideAuthority, identity: Path) -> None:
    async with HttpReceiver(answer=None).serving(server_context(identity)) as url:
        to = AuditExportConfig(name="siem", kind="webhook", url=url, ca_file=str(authority.ca_file))
        with pytest.raises(DeliveryFailed, match="did not confirm"):
            await create_sender(to, seconds=SOON).send(messages(1))


async def test_every_record_of_a_working_gateway_arrives_at_each_receiver(
    short_home: Home,
    authority: OutsideAuthority,
    identity: Path,
    syslog: SyslogReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an outage and a restart, while the log is written all the time."""
    for module, name in ((exporter_module, "POLL_SECONDS"), (exporter_module, "MAX_BACKOFF_SECONDS")):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(assembly, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", 0.02)
    monkeypatch.setattr(maintenance, "ACCESS_POLL_SECONDS", 0.01)
    webhook = HttpReceiver(answer=500)
    access = access_file(short_home)
    access.parent.mkdir()
    written = 0

    async def work(log: AuditLog) -> None:
        nonlocal written
        for _ in range(20):
            written += 1
            log.append(AuditRecord(event="decision", decision="allow", path=f"/{written}"))
            with access.open("a") as file:
                file.write(json.dumps({"request_id": str(written)}) + "\n")
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def gateway() -> AsyncIterator[None]:
        limits = AuditLogLimits(checkpoint_age=dt.timedelta(0), segment_bytes=4000)
        with contextlib.closing(AuditLog(audit_file(short_home), limits=limits)) as log:
            async with maintaining(short_home, log), exporting(short_home, exports):
                await work(log)
                yield

    def complete(lines: list[bytes]) -> bool:
        records = [json.loads(line) for line in lines]
        paths = [each["path"] for each in records if each["event"] == "decision"]
        ids = [each["request_id"] for each in records if each["event"] == "traffic"]
        expected = range(1, written + 1)
        return paths == [f"/{n}" for n in expected] and ids == [str(n) for n in expected]

    def of_webhook() -> list[bytes]:
        return [line for _, body in webhook.requests for line in body.splitlines()]

    def of_syslog() -> list[bytes]:
        return [each.rpartition(b" - ")[2] for each in syslog.messages]

    def metric(name: str, export: str) -> float | None:
        return REGISTRY.get_sample_value(f"sluice_audit_export_{name}", {"export": export})

    def stored(export: str) -> bool:
        """Whether the position after the last signed line is stored: a batch under way would be sent again."""
        end = signed_end(audit_directory(short_home))
        return end is not None and CursorFile(cursor_path(short_home, export)).read().lines == end.sequence

    async with webhook.serving(server_context(identity)) as url:
        exports = (
            to_syslog(syslog, authority),
            AuditExportConfig(name="hook", kind="webhook", url=url, ca_file=str(authority.ca_file)),
        )
        async with gateway():
            await until(lambda: (metric("failures_total", "hook") or 0) > 2, "the outage is not noticed")
            await until(lambda: complete(of_syslog()) and stored("siem"), "syslog waits for HTTP")
            await until(lambda: metric("behind_lines", "siem") == 0, "the metric does not follow")
            assert metric("behind_lines", "hook")
        webhook.answer = 200
        async with gateway():
            await until(lambda: complete(of_webhook()) and complete(of_syslog()), "not every record once")
            await until(cursor_path(short_home, "hook").exists, "the position is not kept")
    key = VerificationKey.read(audit_directory(short_home) / VERIFICATION_KEY)
    chain = [line for line in of_webhook() if not line.startswith(b'{"event":"traffic"')]
    assert verify(chain, key.checker()).count == len(chain)
    assert cursor_path(short_home, "hook").stat().st_mode & 0o777 == 0o600


async def test_an_unusable_ca_file_of_a_receiver_is_an_error_at_the_start(short_home: Home, tmp_path: Path) -> None:
    to = AuditExportConfig(name="siem", kind="webhook", url="https://localhost/", ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(StoreError, match="cannot use"):
        async with exporting(short_home, (to,)):
            pass


async def test_checkpoints_are_kept_by_a_witness_behind_a_url(
    short_home: Home, authority: OutsideAuthority, identity: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("may-write\n")
    stored: dict[str, bytes] = {}

    async def take(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("authorization") != "Bearer may-write":
            return web.Response(status=401)
        if request.method == "PUT":
            stored[request.path] = await request.read()
            return web.Response(status=201)
        found = stored.get(request.path)
        return web.Response(status=404) if found is None else web.Response(body=found)

    directory = audit_directory(short_home)
    with contextlib.closing(AuditLog(audit_file(short_home))) as log:
        log.append(AuditRecord(event="decision"))
    async with serving_https(take, server_context(identity)) as url:
        options = ["--directory", str(directory), "--ca", str(authority.ca_file)]
        allowed = [*options, "--token-file", str(token)]
        refused = await asyncio.to_thread(sluice, "audit-log", "checkpoint", "--to", url, *options)
        assert (refused.returncode, stored) == (1, {})
        assert "answered 401 to GET" in refused.stderr
        for _ in range(2):
            kept = await asyncio.to_thread(sluice, "audit-log", "checkpoint", "--to", url, *allowed)
            assert kept.returncode == 0, kept.stderr
        assert list(stored.values()) == [(directory / CHECKPOINT).read_bytes()]
        verified = await asyncio.to_thread(sluice, "audit-log", "verify", "--checkpoint", url, *allowed)
        assert verified.returncode == 0, verified.stderr
        for path in directory.iterdir():
            path.unlink()
        with contextlib.closing(AuditLog(audit_file(short_home))) as log:
            log.append(AuditRecord(event="decision"))
        forged = await asyncio.to_thread(sluice, "audit-log", "verify", "--checkpoint", url, *allowed)
        assert forged.returncode == 1
