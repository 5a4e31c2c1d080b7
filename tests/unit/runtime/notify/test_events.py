"""The text of notifications: what happened, what to do, and no way for a tenant to abuse names."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sluice.pki.ca import Refusal
from sluice.pki.x509 import AuthorityKind
from sluice.runtime.notify.events import (
    MAX_NAME_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    Certificate,
    audit_finding,
    authority_near_its_end,
    certificate_not_renewed,
    certificates_in,
    job_failed,
    safe_name,
    safe_text,
    superseded_renewal,
    worker_excluded,
)
from sluice.runtime.notify.kinds import Kind
from tests.outside import OutsideAuthority

HOUR = 3600.0
NOW = dt.datetime(2026, 11, 23, 12, 0, 30, tzinfo=dt.UTC).timestamp()


def test_a_failed_job_is_a_one_time_event_with_the_command_that_shows_why() -> None:
    event = job_failed("3f9c", "nightly.py", "oidc:ada@example.com", NOW)
    assert event.once
    assert event.kind == Kind.JOB_FAILED
    assert event.subject == "3f9c"
    assert event.what == 'Job "nightly.py" of oidc:ada@example.com failed.'
    assert "sluice jobs logs 3f9c" in event.action
    assert event.key == job_failed("3f9c", "renamed", "bob", NOW + 1).key
    assert event.key != job_failed("3f9d", "nightly.py", "oidc:ada@example.com", NOW).key


@pytest.mark.parametrize(
    ("left", "life", "late"),
    [
        pytest.param(13 * HOUR, 24 * HOUR, False, id="not renewed yet, and it is early"),
        pytest.param(6.1 * HOUR, 24 * HOUR, False, id="just before"),
        pytest.param(6.0 * HOUR, 24 * HOUR, True, id="a quarter is left"),
        pytest.param(-1.0, 24 * HOUR, True, id="it has ended"),
        pytest.param(0.5 * HOUR, HOUR, False, id="a short one is not late"),
        pytest.param(0.2 * HOUR, HOUR, True, id="a short one is late"),
        pytest.param(1.5 * HOUR, None, False, id="its beginning is not known: more than an hour"),
        pytest.param(0.9 * HOUR, None, True, id="its beginning is not known: less than an hour"),
    ],
)
def test_a_certificate_that_is_late_for_its_renewal_is_an_event(left: float, life: float | None, late: bool) -> None:
    end = NOW + left
    start = 0.0 if life is None else end - life
    event = certificate_not_renewed(Certificate("spiffe://d/taskmanager/tm-1", "taskmanager/tm-1", end, start), NOW)
    assert (event is not None) is late
    if event is not None:
        assert event.subject == "spiffe://d/taskmanager/tm-1"
        assert "sluice pki doctor" in event.action
        assert not event.once


def test_a_certificate_that_was_renewed_and_is_late_again_is_another_event() -> None:
    first = certificate_not_renewed(Certificate("i", "p", NOW), NOW)
    second = certificate_not_renewed(Certificate("i", "p", NOW + 60), NOW)
    assert first is not None
    assert second is not None
    assert first.key != second.key


def test_certificates_are_read_from_metrics() -> None:
    text = """
# HELP sluice_identity_not_after_seconds When it ends.
sluice_identity_not_after_seconds{identity="spiffe://d/taskmanager/a",process="taskmanager/a"} 2000.0
sluice_identity_not_before_seconds{identity="spiffe://d/taskmanager/a",process="taskmanager/a"} 1000.0
sluice_identity_not_after_seconds{identity="spiffe://d/auth/b",process="auth/b"} 3000.0
sluice_identity_not_after_seconds{identity="spiffe://d/taskmanager/c",process="<!channel>"} 1.0
sluice_identity_not_after_seconds{identity="http://evil.example/x",process="taskmanager/c"} 1.0
sluice_identity_not_after_seconds{identity="spiffe://d/taskmanager/d",process="taskmanager/d"} NaN
sluice_identity_not_after_seconds{identity="spiffe://d/taskmanager/e",process="taskmanager/e"} +Inf
sluice_identity_not_after_seconds{identity="spiffe://d/taskmanager/f",process="taskmanager/f"} -1e300
sluice_other{identity="x"} 1.0
sluice_identity_not_after_secondsX nonsense nonsense
"""
    assert list(certificates_in(text)) == [
        Certificate("spiffe://d/taskmanager/a", "taskmanager/a", 2000.0, 1000.0),
        Certificate("spiffe://d/auth/b", "auth/b", 3000.0, 0.0),
    ]
    assert list(certificates_in('sluice_identity_not_after_seconds{identity="} broken')) == []


def test_an_authority_is_an_event_in_its_last_month_or_last_quarter_of_its_lifetime(tmp_path: Path) -> None:
    certificate = OutsideAuthority(tmp_path).certificate
    start, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    before = end - min(30 * 24 * HOUR, (end - start) / 4)
    assert authority_near_its_end("internal", certificate, before - 1) is None
    event = authority_near_its_end("internal", certificate, before)
    assert event is not None
    assert "internal authority ends at" in event.what
    assert "rotate-authorities" in event.action
    ended = authority_near_its_end("internal", certificate, end + 1)
    assert ended is not None
    assert "ended at" in ended.what
    assert ended.key == event.key


def test_the_event_of_an_excluded_worker_has_the_reason() -> None:
    event = worker_excluded("sw-1", "no disk has room", NOW)
    assert "no disk has room" in event.what
    assert "sluice shuffle status" in event.action
    assert event.key == worker_excluded("sw-1", "2 jobs cannot reach it", NOW + 9).key


def test_audit_findings_are_a_new_event_when_they_have_changed() -> None:
    assert audit_finding({}, NOW) is None
    assert audit_finding({"high": 0}, NOW) is None
    event = audit_finding({"low": 1, "high": 2}, NOW)
    assert event is not None
    assert event.what == "The audit of 2026-11-23T12:00:00.000Z has findings: 2 high, 1 low."
    again, more = audit_finding({"high": 2, "low": 1}, NOW + 9), audit_finding({"high": 3, "low": 1}, NOW + 9)
    assert again is not None
    assert more is not None
    assert event.key == again.key != more.key


def test_the_event_of_a_superseded_renewal_names_the_serial_and_the_stolen_key_guide() -> None:
    at = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
    refusal = Refusal(
        identity="spiffe://d/taskmanager/tm-1",
        authority=AuthorityKind.INTERNAL,
        serial="a1",
        newest="b2",
        not_after=at,
        first=at,
        last=at,
    )
    event = superseded_renewal(refusal)
    assert "serial a1" in event.what
    assert "thief" in event.what
    assert "stolen-key.md" in event.action
    assert event.subject == refusal.identity


HOSTILE = [
    "x\r\nBcc: all@example.com",
    "x\n\nbody",
    "<!channel> @all @channel",
    "<img src=http://evil.example/x>",
    "[click](http://evil.example)",
    "`rm`*bold*",
    "\u202egpj.exe",
    "\u2028line",
    "x" * 100_000,
    "",
    "\x00\x1b[31m",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_tenants_cannot_inject_headers_markup_mentions_or_urls(name: str) -> None:
    told = worker_excluded("sw-1", name, NOW)
    for text in (safe_text(name), told.what):
        assert len(text) <= MAX_TEXT_CHARACTERS + 100
        assert text.isprintable()
        assert not set(text) & set("<>[]`*|&\\")
        assert " @" not in text
        assert "http://" not in text
    for text in (safe_name(name), job_failed("1", name, name, NOW).what):
        assert len(text) <= 2 * MAX_NAME_CHARACTERS + 30
        assert text.isprintable()
        assert not set(text) & set("<>[]`*/|&\\")
        assert " @" not in text
        assert not text.startswith("@")


@given(st.text(max_size=1000))
def test_any_text_is_bounded_and_on_one_line(text: str) -> None:
    assert len(safe_name(text)) <= MAX_NAME_CHARACTERS
    assert len(safe_text(text)) <= MAX_TEXT_CHARACTERS
    for safe in (safe_name(text), safe_text(text)):
        assert safe.isprintable()
        assert len(safe.splitlines()) <= 1
