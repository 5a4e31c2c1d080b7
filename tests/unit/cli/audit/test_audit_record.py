"""The summary that an audit stores for the dashboard."""

from __future__ import annotations

import datetime as dt
import stat
from pathlib import Path

from sluice.audit.model import (
    Accepted,
    Kind,
    Listener,
    ListenerReport,
    Negotiated,
    Outcome,
    Report,
    Result,
    Severity,
)
from sluice.cli.audit.record import keep_summary, summary_of
from sluice.core.home import Home
from sluice.pki.channels import Channel
from sluice.runtime.rest.audit_summary import Examined, read_summary, summary_file

BEGAN = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def result(listener: str, severity: Severity, outcome: Outcome, accepted: Accepted | None = None) -> Result:
    return Result(
        check="TLS-01",
        title="t",
        listener=listener,
        place="p",
        severity=severity,
        outcome=outcome,
        done="d",
        expected="e",
        references=(),
        seen="something that only operators are to read",
        remedy="r",
        accepted=accepted,
    )


REPORT = Report(
    subject="s",
    started_at=BEGAN,
    seconds=12.5,
    listeners=(
        ListenerReport(
            listener=Listener(name="rpc", kind=Kind.MUTUAL, channel=Channel.RPC, process="jobmanager"),
            negotiated=Negotiated(
                version="TLSv1.3",
                suite="TLS_AES_256_GCM_SHA384",
                group="x25519",
                post_quantum_groups=(),
                groups=(),
                suites=(),
                alpn="h2",
                signature="",
                client_certificate_requested=True,
                stapled=False,
                chain=(),
            ),
        ),
        ListenerReport(listener=Listener(name="rest", kind=Kind.SOCKET)),
    ),
    results=(
        result("rpc", Severity.HIGH, Outcome.FINDING),
        result("rpc", Severity.LOW, Outcome.FINDING, Accepted("known", dt.date(2027, 1, 1))),
        result("rpc", Severity.LOW, Outcome.PASSED),
        result("rest", Severity.LOW, Outcome.FINDING),
    ),
)


def test_a_summary_only_counts_findings_that_are_not_accepted() -> None:
    summary = summary_of(REPORT)
    assert (summary.at, summary.checks, summary.total) == (BEGAN.timestamp() + 12.5, 4, 2)
    assert summary.findings == {"high": 1, "low": 1}
    rpc, rest = summary.listeners
    assert (rpc.channel, rpc.version, rpc.group, rpc.findings) == ("rpc", "TLSv1.3", "x25519", 1)
    assert rest == Examined(name="rest", findings=1)


def test_a_summary_is_readable_by_its_owner_only_and_round_trips(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    keep_summary(home, REPORT)
    assert read_summary(home) == summary_of(REPORT)
    assert stat.S_IMODE(summary_file(home).stat().st_mode) == 0o600
    assert b"operators" not in summary_file(home).read_bytes()
