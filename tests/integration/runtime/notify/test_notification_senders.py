"""Notifications to external receivers over real TLS.

The receivers are webhooks and mail servers: friendly, slow, broken and hostile.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sluice.core import SluiceError, StoreError
from sluice.runtime.notify import Kind, MailConfig, Message, NotifyError, WebhookConfig, job_failed, sender_of
from tests import mail_server
from tests.audit_receivers import HttpReceiver, server_context, serving_https
from tests.command import sluice
from tests.mail_server import PASSWORD, USER, MailServer
from tests.outside import OutsideAuthority

SOON = 1.0
"""Seconds after which a receiver that hangs is given up."""
NOW = 1_764_000_000.0
HOSTILE = "etl\r\nBcc: thief@example.com\r\n\r\n.\r\nQUIT"
MESSAGE = Message("sluice.local", [job_failed("3f9c", HOSTILE, "ada", NOW)], NOW)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OutsideAuthority:
    return OutsideAuthority(tmp_path_factory.mktemp("receiver"))


@pytest.fixture(scope="module")
def identity(authority: OutsideAuthority) -> Path:
    return authority.issue("localhost")


def secret(path: Path, text: str) -> str:
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


def hook(authority: OutsideAuthority, url: str = "", **more: Any) -> WebhookConfig:
    return WebhookConfig(name="chat", kinds=(Kind.JOB_FAILED,), url=url, ca_file=str(authority.ca_file), **more)


def mail(authority: OutsideAuthority, port: int, **more: Any) -> MailConfig:
    settings = {"ca_file": str(authority.ca_file), "to": ("a@example.com", "b@example.com"), **more}
    return MailConfig(
        name="ops", kinds=(Kind.JOB_FAILED,), host="localhost", port=port, sender="s@example.com", **settings
    )


async def test_a_webhook_gets_json_with_its_token(identity: Path, authority: OutsideAuthority, tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.serving(server_context(identity)) as url:
        await sender_of(hook(authority, url, token_file=secret(tmp_path / "token", "abc\n"))).send(MESSAGE)
        hidden = secret(tmp_path / "url", f"{url}?sig=secret\n")
        await sender_of(hook(authority, url_file=hidden)).send(MESSAGE)
    (headers, body), (without, _) = receiver.requests
    assert headers["authorization"] == "Bearer abc"
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["notifications"][0]["subject"] == "3f9c"
    assert "authorization" not in without


@pytest.mark.parametrize("status", [302, 307, 400, 401, 404, 429, 500])
async def test_an_unexpected_answer_status_of_a_webhook_is_reported(
    identity: Path, authority: OutsideAuthority, status: int
) -> None:
    async with HttpReceiver(answer=status).serving(server_context(identity)) as url:
        with pytest.raises(NotifyError, match=f"chat answered {status}"):
            await sender_of(hook(authority, url)).send(MESSAGE)


async def test_a_webhook_that_hangs_is_given_up(identity: Path, authority: OutsideAuthority) -> None:
    async with HttpReceiver(answer=None).serving(server_context(identity)) as url:
        with pytest.raises(NotifyError, match="chat did not confirm"):
            await sender_of(hook(authority, url), seconds=SOON).send(MESSAGE)


async def test_an_endless_webhook_answer_is_not_read(identity: Path, authority: OutsideAuthority) -> None:
    ended = asyncio.Event()

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"x" * 65536)
        except (ConnectionError, asyncio.CancelledError):
            ended.set()
            raise

    async with serving_https(endless, server_context(identity)) as url:
        await sender_of(hook(authority, url)).send(MESSAGE)
        await asyncio.wait_for(ended.wait(), 40)


@pytest.fixture(params=["another host", "another authority", "an old version"])
def impostor(
    request: pytest.FixtureRequest, identity: Path, authority: OutsideAuthority, tmp_path: Path
) -> tuple[Path, bool]:
    """The identity that an impostor presents, and whether it speaks only TLS 1.2."""
    if request.param == "another host":
        return authority.issue("mail.example.org"), False
    if request.param == "another authority":
        return OutsideAuthority(tmp_path / "other").issue("localhost"), False
    return identity, True


async def test_an_impostor_webhook_gets_no_request(impostor: tuple[Path, bool], authority: OutsideAuthority) -> None:
    shown, old = impostor
    context = server_context(shown)
    if old:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    receiver = HttpReceiver()
    async with receiver.serving(context) as url:
        with pytest.raises(NotifyError):
            await sender_of(hook(authority, url)).send(MESSAGE)
    assert not receiver.requests


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_an_impostor_mail_server_gets_no_mail(
    impostor: tuple[Path, bool], authority: OutsideAuthority, tls: str
) -> None:
    shown, old = impostor
    server = MailServer(shown, old=old, implicit=tls == "implicit")
    async with server.serving() as port:
        with pytest.raises(NotifyError, match="SSL"):
            await sender_of(mail(authority, port, tls=tls)).send(MESSAGE)
    assert not server.delivered


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.parametrize("sign_in", [False, True])
async def test_a_mail_server_gets_one_mail_for_all_addresses(
    identity: Path, authority: OutsideAuthority, tmp_path: Path, tls: str, sign_in: bool
) -> None:
    server = MailServer(identity, implicit=tls == "implicit", sign_in=sign_in)
    more = {"user": USER, "password_file": secret(tmp_path / "password", PASSWORD + "\n")} if sign_in else {}
    async with server.serving() as port:
        assert await sender_of(mail(authority, port, tls=tls, **more)).send(MESSAGE) == ""
    (delivered,) = server.delivered
    got = delivered.mail
    assert delivered.recipients == ["a@example.com", "b@example.com"]
    assert got["Subject"] == "[sluice] sluice.local: job-failed"
    assert "Bcc" not in got
    assert "sluice jobs logs 3f9c" in got.get_content()
    assert not any(line.startswith(("Bcc", ".", "QUIT")) for line in got.get_content().splitlines())


async def test_a_failed_mail_sign_in_is_reported_without_the_password(
    identity: Path, authority: OutsideAuthority, tmp_path: Path
) -> None:
    server = MailServer(identity, sign_in=True)
    wrong = secret(tmp_path / "password", "wrong-secret")
    async with server.serving() as port:
        with pytest.raises(NotifyError, match="answered 535") as caught:
            await sender_of(mail(authority, port, user=USER, password_file=wrong)).send(MESSAGE)
    assert "wrong-secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert not server.delivered


@pytest.mark.parametrize("answer", ["451 later wrong-secret", "554 spam"])
async def test_a_mail_that_is_refused_is_not_delivered(
    identity: Path, authority: OutsideAuthority, answer: str
) -> None:
    async with MailServer(identity, answer=answer).serving() as port:
        with pytest.raises(NotifyError, match=f"answered {answer[:3]} to ops") as caught:
            await sender_of(mail(authority, port)).send(MESSAGE)
    assert "wrong-secret" not in str(caught.value)


async def test_an_address_that_is_refused_does_not_repeat_the_mail_to_the_others(
    identity: Path, authority: OutsideAuthority
) -> None:
    server = MailServer(identity, refused=("b@example.com",))
    async with server.serving() as port:
        assert "refuses 1 of 2 addresses: 550" in await sender_of(mail(authority, port)).send(MESSAGE)
        with pytest.raises(NotifyError, match="refuses all addresses of ops: 550"):
            await sender_of(mail(authority, port, to=("b@example.com",))).send(MESSAGE)
    assert [each.recipients for each in server.delivered] == [["a@example.com"]]


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.parametrize(
    "conversation", [mail_server.hang, mail_server.drip, mail_server.flood, mail_server.greet_and_hang]
)
async def test_a_mail_server_that_wastes_time_or_memory_is_given_up(
    authority: OutsideAuthority, conversation: mail_server.Conversation, tls: str
) -> None:
    async with mail_server.serving(conversation) as port:
        with pytest.raises(NotifyError, match="did not take the mail to ops"):
            await sender_of(mail(authority, port, tls=tls), seconds=SOON).send(MESSAGE)


async def test_a_mail_server_without_starttls_gets_nothing_but_the_greeting(
    authority: OutsideAuthority, tmp_path: Path
) -> None:
    mail_server.heard.clear()
    password = secret(tmp_path / "password", PASSWORD)
    async with mail_server.serving(mail_server.no_starttls) as port:
        with pytest.raises(NotifyError):
            await sender_of(mail(authority, port, user=USER, password_file=password)).send(MESSAGE)
    assert [line.split()[0].upper() for line in mail_server.heard] == [b"EHLO"]


async def test_sending_to_a_hanging_mail_server_can_be_cancelled(authority: OutsideAuthority) -> None:
    async with mail_server.serving(mail_server.hang) as port:
        sending = asyncio.create_task(sender_of(mail(authority, port), seconds=3600).send(MESSAGE))
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        # asyncio.run() waits for threads: this returns once the conversation has ended.
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_unreachable_receivers_and_missing_or_readable_secret_files_are_errors(
    authority: OutsideAuthority, tmp_path: Path
) -> None:
    async with mail_server.serving(mail_server.hang) as port:
        pass
    with pytest.raises(NotifyError):
        await sender_of(mail(authority, port)).send(MESSAGE)
    with pytest.raises(NotifyError):
        await sender_of(hook(authority, f"https://localhost:{port}/")).send(MESSAGE)
    readable = secret(tmp_path / "readable", "x")
    os.chmod(readable, 0o644)  # noqa: PTH101  a file of this test, not of the loop
    empty = secret(tmp_path / "empty", "\n")
    for file in (readable, empty, str(tmp_path / "missing")):
        for sender in (
            sender_of(mail(authority, port, user=USER, password_file=file)),
            sender_of(hook(authority, url_file=file)),
            sender_of(hook(authority, f"https://localhost:{port}/", token_file=file)),
        ):
            with pytest.raises(StoreError):
                await sender.send(MESSAGE)
    for sender in (
        sender_of(mail(authority, port, ca_file=empty)),
        sender_of(WebhookConfig(name="chat", kinds=(Kind.JOB_FAILED,), url="https://localhost/", ca_file="/missing")),
    ):
        with pytest.raises(StoreError, match="correct ca_file in"):
            await sender.send(MESSAGE)
    plain = secret(tmp_path / "plain", "http://localhost/secret")
    with pytest.raises(SluiceError) as caught:
        await sender_of(hook(authority, url_file=plain)).send(MESSAGE)
    assert "/secret" not in str(caught.value)


async def test_the_notify_test_command_tries_all_receivers(
    identity: Path, authority: OutsideAuthority, tmp_path: Path
) -> None:
    receiver, server = HttpReceiver(), MailServer(identity)
    file = tmp_path / "sluice.toml"

    async def run(*arguments: str) -> tuple[int, str]:
        done = await asyncio.to_thread(sluice, "notify", "test", *arguments, "--home", tmp_path, "--config", file)
        return done.returncode, done.stdout + done.stderr

    async with receiver.serving(server_context(identity)) as url, server.serving() as port:
        file.write_text("")
        code, said = await run()
        assert code == 2
        assert "nobody is to be notified" in said
        file.write_text(
            f"""
[[notify.webhooks]]
name = "chat"
kinds = ["job-failed"]
url = "{url}"
ca_file = "{authority.ca_file}"
[[notify.mails]]
name = "ops"
kinds = ["authority-ends", "superseded-renewal"]
host = "localhost"
port = {port}
sender = "sluice@example.com"
to = ["ops@example.com"]
ca_file = "{authority.ca_file}"
"""
        )
        code, said = await run()
        assert code == 0, said
        assert "delivered" in said
        assert json.loads(receiver.requests[0][1])["notifications"][0]["kind"] == "test"
        receiver.answer = 500
        code, said = await run("--json")
        assert code == 1
        assert [(each["receiver"], each["delivered"]) for each in json.loads(said)] == [("chat", False), ("ops", True)]
        assert (await run("ops"))[0] == 0
        assert (await run("nobody"))[0] == 2
    assert len(server.delivered) == 3
    assert all("This is a test" in each.mail.get_content() for each in server.delivered)
