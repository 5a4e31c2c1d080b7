"""A JobManager sends notifications about its cluster, and its successor continues where it stopped."""

from __future__ import annotations

import base64
import datetime as dt
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.core import render
from sluice.pki.ca.refusals import Refusal, Refusals
from sluice.pki.x509 import AuthorityKind
from sluice.runtime.notify import Kind, MailConfig, NotifyConfig, WebhookConfig, certificates_in
from sluice.runtime.processes import notifications
from tests.audit_receivers import HttpReceiver, server_context
from tests.integration.runtime.conftest import Cluster
from tests.live_files import paths_below
from tests.mail_server import MailServer
from tests.outside import OutsideAuthority
from tests.waiting import until

pytestmark = pytest.mark.cluster


def told(receiver: HttpReceiver) -> list[dict[str, Any]]:
    """Return the notifications that a webhook received, in order."""
    return [each for _, body in receiver.requests for each in json.loads(body)["notifications"]]


def known(cluster: Cluster) -> bytes:
    """Return the stored record of what receivers have been sent."""
    kept = [each for each in paths_below(cluster.home.root) if each.parts[-2:] == ("meta", "notifications")]
    return base64.b64decode(json.loads(kept[0].read_bytes())["value"]) if kept else b""


async def restart(cluster: Cluster) -> None:
    await cluster.master.aclose()
    cluster.master = AsyncExitStack()
    await cluster.start_jobmanager()


async def test_each_notification_is_sent_once_by_webhook_and_mail_across_leader_changes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 0.05)
    authority = OutsideAuthority(tmp_path / "outside")
    identity = authority.issue("localhost")
    jobs, server = HttpReceiver(), MailServer(identity)
    async with jobs.serving(server_context(identity)) as url, server.serving() as port:
        ca_file = str(authority.ca_file)
        notify = NotifyConfig(
            group_minutes=0.0,
            webhooks=(WebhookConfig(name="jobs", kinds=(Kind.JOB_FAILED,), url=url, ca_file=ca_file),),
            mails=(
                MailConfig(
                    name="security",
                    kinds=(Kind.SUPERSEDED_RENEWAL,),
                    host="localhost",
                    port=port,
                    sender="sluice@example.com",
                    to=("security@example.com",),
                    ca_file=ca_file,
                ),
            ),
        )
        cluster.config = msgspec.structs.replace(cluster.config, notify=notify)
        await restart(cluster)
        now = dt.datetime.now(dt.UTC)
        Refusals(cluster.home.pki).add(
            Refusal(
                identity="spiffe://test/taskmanager/tm-1",
                authority=AuthorityKind.INTERNAL,
                serial="a1",
                newest="b2",
                not_after=now + dt.timedelta(days=1),
                first=now,
                last=now,
            )
        )
        shown = [each for each in certificates_in(render("jobmanager/jm-1")) if each.identity.endswith("/jm-1")]
        assert all(0 < each.not_before < now.timestamp() < each.not_after for each in shown)
        assert shown, "its own certificate is among its metrics"
        first = await cluster.submit(end="fail-first", failures=9, executors=0, name="<!channel> @all")
        await cluster.until(first, "FAILED")
        # Both are told at least once: exactly once, if that is on disk before the next one begins.
        await until(lambda: known(cluster).count(b'"told":{"') == 2, "both receivers are told")
        assert len(told(jobs)) == 1
        await restart(cluster)
        second = await cluster.submit(end="fail-first", failures=9, executors=0)
        await cluster.until(second, "FAILED")
        await until(lambda: len(told(jobs)) > 1, "the webhook is told of the second job")
    assert [each["subject"] for each in told(jobs)] == [first, second]
    assert '"??channel? ?all"' in told(jobs)[0]["what"]
    assert f"sluice jobs logs {first}" in told(jobs)[0]["action"]
    (mail,) = server.delivered
    assert mail.recipients == ["security@example.com"]
    assert "serial a1" in mail.mail.get_content()
    assert first not in mail.mail.get_content()
