"""Formatting of a message as mail and as JSON."""

from __future__ import annotations

import json
from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest

from sluice.runtime.notify.events import job_failed, sample_event, worker_excluded
from sluice.runtime.notify.message import MAX_SUBJECT_CHARACTERS, Message

NOW = 1_764_000_000.0
HOSTILE = "x\r\nBcc: thief@example.com\r\n\r\n<b>\u202e é日本"


def parsed(message: Message) -> EmailMessage:
    raw = message.mail("sluice@example.com", ["a@example.com", "b@example.com"]).as_bytes(policy=policy.SMTP)
    found = message_from_bytes(raw, policy=policy.default)
    assert isinstance(found, EmailMessage)
    return found


def test_the_body_of_a_webhook_message_has_title_cluster_events_and_text() -> None:
    job, worker = job_failed("3f", "n", "ada", NOW), worker_excluded("sw-1", "no room", NOW)
    body = json.loads(Message("sluice.local", [job, worker], NOW, more=3).json())
    assert body["title"] == "[sluice] sluice.local: job-failed, worker-excluded"
    assert body["cluster"] == "sluice.local"
    assert body["more"] == 3
    assert "3 more follow" in body["text"]
    assert body["notifications"][0] == {
        "kind": "job-failed",
        "key": job.key,
        "subject": "3f",
        "what": job.what,
        "action": job.action,
        "at": "2025-11-24T16:00:00.000Z",
    }


def test_a_mail_says_what_happened_and_what_to_do() -> None:
    mail = parsed(Message("sluice.local", [job_failed("3f", "nightly.py", "ada", NOW)] * 2, NOW))
    assert mail["Subject"] == "[sluice] sluice.local: 2 job-failed"
    assert mail["From"] == "sluice@example.com"
    assert mail["To"] == "a@example.com, b@example.com"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Message-ID"].endswith("@example.com>")
    text = mail.get_content()
    assert 'Job "nightly.py" of ada failed.' in text
    assert "sluice jobs logs 3f" in text


@pytest.mark.parametrize("cluster", ["sluice.local", HOSTILE, "x" * 1000])
def test_hostile_names_in_a_mail_stay_in_the_body_on_one_line(cluster: str) -> None:
    mail = parsed(Message(cluster, [job_failed("3f", HOSTILE, HOSTILE, NOW)], NOW))
    assert sorted(mail.keys()) == [
        "Auto-Submitted",
        "Content-Transfer-Encoding",
        "Content-Type",
        "Date",
        "From",
        "MIME-Version",
        "Message-ID",
        "Subject",
        "To",
    ]
    assert len(mail["Subject"]) <= MAX_SUBJECT_CHARACTERS
    assert not any(line.startswith("Bcc") for line in mail.get_content().splitlines())


def test_a_test_message_says_that_it_is_a_test() -> None:
    assert "This is a test" in Message("c", [sample_event(NOW)], NOW).text
