"""``sluice audit --insider`` without a cluster: what it lists, and how it fails."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sluice.audit import InputError, read_baseline
from sluice.audit.insider import CHECKS
from tests.command import sluice


def test_list_checks_lists_the_attempts_of_the_insider_audit_only() -> None:
    done = sluice("audit", "--insider", "--list-checks")
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.splitlines()[1:] if line.strip()}
    assert {check.id for check in CHECKS} <= listed
    assert "LSN-01" not in listed


def test_the_insider_audit_without_a_cluster_fails(tmp_path: Path) -> None:
    done = sluice("audit", "--insider", "--home", tmp_path / "home", environment={"SLUICE_SERVER": None})
    assert done.returncode == 3
    assert "no cluster is running" in done.stderr


def test_a_baseline_accepts_the_ids_of_attempts_and_no_unknown_id(tmp_path: Path) -> None:
    baseline = tmp_path / "accepted.toml"
    today = dt.date(2026, 11, 23)
    entry = '[[accepted]]\ncheck = "{}"\nlistener = "driver"\nreason = "known"\nexpires = 2026-12-01\n'
    baseline.write_text(entry.format("KEY-01"))
    assert [each.check for each in read_baseline(baseline, today)] == ["KEY-01"]
    baseline.write_text(entry.format("KEY-9999"))
    with pytest.raises(InputError, match="KEY-9999"):
        read_baseline(baseline, today)
