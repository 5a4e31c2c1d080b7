"""``sluice audit`` as a user runs it, and the audit as a test suite."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from sluice.audit.catalogue import CHECKS
from sluice.cli.errors import UnreachableError, UsageError, exit_code_of
from sluice.cli.main import app
from tests.hostile import TestPki
from tests.weak_servers import http_answer, server_context, serving

REPOSITORY = Path(__file__).resolve().parents[3]


def targets(directory: Path, address: tuple[str, int], expected: str, name: str = "spark") -> Path:
    """Write a target file with one listener; returns its path."""
    path = directory / "targets.toml"
    host, port = address
    path.write_text(f'[[target]]\nname = "{name}"\nhost = "{host}"\nport = {port}\nexpected = "{expected}"\n')
    return path


def test_the_audit_of_a_foreign_cluster_reports_a_finding_with_exit_code_1(tmp_path: Path) -> None:
    with serving(http_answer("200 OK", body="{}")) as address:
        done = CliRunner().invoke(app, ["audit", "--targets", str(targets(tmp_path, address, "http")), "--json"])
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert [each["check"] for each in report["results"] if each["outcome"] == "finding"] == ["EDG-09"]


def test_an_expired_baseline_entry_does_not_suppress_a_finding(tmp_path: Path) -> None:
    baseline = tmp_path / "accepted.toml"
    baseline.write_text('[[accepted]]\ncheck = "EDG-09"\nlistener = "*"\nreason = "a test"\nexpires = 2000-01-01\n')
    with serving(http_answer("200 OK", headers="x: y\r\n")) as address:
        command = ["audit", "--targets", str(targets(tmp_path, address, "http"))]
        expired = CliRunner().invoke(app, [*command, "--baseline", str(baseline)])
        assert expired.exit_code == 1
        assert "expired on 2000-01-01" in expired.output
    with serving(http_answer("403 Forbidden")) as address:
        clean = CliRunner().invoke(app, ["audit", "--targets", str(targets(tmp_path, address, "http"))])
    assert clean.exit_code == 0, clean.output
    assert "no finding" in clean.output


def test_a_report_is_written_to_a_file_in_the_format_asked_for(tmp_path: Path) -> None:
    output = tmp_path / "report.sarif"
    with serving(http_answer("403 Forbidden")) as address:
        command = ["audit", "--targets", str(targets(tmp_path, address, "http")), "--format", "sarif"]
        done = CliRunner().invoke(app, [*command, "--output", str(output)])
    assert done.exit_code == 0
    assert json.loads(output.read_text())["version"] == "2.1.0"


@pytest.mark.parametrize("content", ["", "[[target]]", "[["])
def test_an_empty_or_malformed_target_file_is_a_usage_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(content)
    done = CliRunner().invoke(app, ["audit", "--targets", str(path)])
    assert isinstance(done.exception, UsageError)
    assert exit_code_of(done.exception) == 2


@pytest.mark.parametrize(("side", "expected"), [("internal", "passed"), ("edge", "finding")])
def test_the_ca_file_of_a_target_decides_whether_its_certificate_is_trusted(
    side: str, expected: str, pki: TestPki, server_directory: Path, tmp_path: Path
) -> None:
    with serving(context=server_context(server_directory, client=ssl.CERT_NONE)) as address:
        path = targets(tmp_path, address, "server")
        (tmp_path / "authority.pem").write_bytes((pki.home.pki / "authorities" / side / "cert.pem").read_bytes())
        path.write_text(path.read_text() + 'ca_file = "authority.pem"\n')
        done = CliRunner().invoke(app, ["audit", "--targets", str(path), "--handshake-limit", "0.5", "--json"])
    outcomes = {each["check"]: each["outcome"] for each in json.loads(done.stdout)["results"]}
    assert outcomes["CRT-09"] == expected


def test_a_missing_ca_file_of_a_target_is_a_usage_error(tmp_path: Path) -> None:
    path = targets(tmp_path, ("127.0.0.1", 1), "server")
    path.write_text(path.read_text() + 'ca_file = "missing.pem"\n')
    done = CliRunner().invoke(app, ["audit", "--targets", str(path)])
    assert isinstance(done.exception, UsageError)


def test_the_audit_of_a_home_without_a_running_cluster_is_an_unreachable_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "--home", str(tmp_path / "home"), "--no-with-identities"])
    assert isinstance(done.exception, UnreachableError)
    assert exit_code_of(done.exception) == 3


def test_auditing_with_identities_but_without_the_authority_keys_is_a_usage_error_with_a_remedy(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    entry = {"name": "launcher", "pid": os.getpid(), "started_at": psutil.Process().create_time()}
    (home / "run" / "cluster.json").write_text(json.dumps({"launcher": entry}))
    done = CliRunner().invoke(app, ["audit", "--home", str(home)])
    assert isinstance(done.exception, UsageError)
    assert "--no-with-identities" in done.exception.remedy


def test_the_audit_prints_its_check_catalogue_and_its_report_schema() -> None:
    listed = CliRunner().invoke(app, ["audit", "--list-checks"])
    assert all(check.id in listed.output for check in CHECKS)
    schema = json.loads(CliRunner().invoke(app, ["audit", "--schema"]).stdout)
    assert "Report" in schema["$defs"]


def test_the_audit_runs_as_a_test_suite_with_a_readable_name_for_each_check(
    server_directory: Path, tmp_path: Path
) -> None:
    """``pytest tests/audit --cluster``: one weakness, one failed test."""
    with serving(context=server_context(server_directory, client=ssl.CERT_OPTIONAL)) as address:
        done = _pytest("--cluster", str(targets(tmp_path, address, "mutual")), "-k", "MTL", "--patience", "20")
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1, done.stdout
    assert "spark: A client without a certificate is refused (MTL-02)" in failed[0]
    assert "4 passed" in done.stdout or "5 passed" in done.stdout, done.stdout


def _pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "tests/audit", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
