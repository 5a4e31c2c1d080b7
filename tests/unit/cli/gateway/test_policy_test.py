"""``sluice policy test`` through the command itself: tables, and one destination of a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sluice.cli.errors import UsageError
from sluice.cli.main import app
from sluice.gateway.authz import DEFAULT_POLICY
from sluice.gateway.errors import PolicyError

EGRESS = """
[[egress]]
to = ["api.example.com:443", "10.1.0.0/16:5432"]
roles = ["submitter"]
jobs = ["nightly-*"]
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(DEFAULT_POLICY.read_text() + 'ada = ["submitter"]\n' + EGRESS)
    path.chmod(0o600)
    return path


def run(policy: Path, *arguments: str | Path) -> Result:
    home = policy.parent / "home"
    command = ["policy", "test", *map(str, arguments), "--file", str(policy), "--home", str(home)]
    return CliRunner().invoke(app, command)


@pytest.mark.parametrize(
    ("egress", "job", "more", "code"),
    [
        ("api.example.com:443", "nightly-1", (), 0),
        ("API.example.com:443", "nightly-1", (), 0),
        ("10.1.9.9:5432", "nightly-1", (), 0),
        ("api.example.com:443", "weekly", (), 1),
        ("api.example.com:80", "nightly-1", (), 1),
        ("api.example.com.evil.org:443", "nightly-1", (), 1),
        ("api.example.com", "nightly-1", (), 1),
    ],
)
def test_a_single_destination_is_allowed_or_denied_by_the_policy(
    policy: Path, egress: str, job: str, more: tuple[str, ...], code: int
) -> None:
    result = run(policy, "--egress", egress, "--as", "ada", "--job", job, *more)
    assert result.exit_code == code, result.output
    assert ("allowed" if code == 0 else "denied") in result.stdout


def test_an_egress_rule_for_a_role_applies_only_to_users_with_that_role(policy: Path) -> None:
    asked = ("--egress", "api.example.com:443", "--as", "eve", "--job", "nightly-1", "--json")
    assert json.loads(run(policy, *asked).stdout)["verdict"] == "deny"
    document = json.loads(run(policy, *asked, "--role", "submitter").stdout)
    assert (document["verdict"], document["roles"]) == ("allow", ["submitter"])


def test_a_table_checks_operations_and_egress_destinations(policy: Path, tmp_path: Path) -> None:
    table = tmp_path / "expected.toml"
    table.write_text(
        '[[case]]\nas = "ada"\noperation = "jobs.submit"\nexpect = "allow"\n'
        '[[case]]\nas = "ada"\njob = "nightly-1"\negress = "api.example.com:443"\nexpect = "allow"\n'
        '[[case]]\nas = "ada"\njob = "weekly"\negress = "api.example.com:443"\nexpect = "deny"\n'
    )
    result = run(policy, table)
    assert (result.exit_code, result.stdout) == (0, "3 of 3 as expected\n")
    table.write_text(table.read_text().replace('job = "weekly"', 'job = "nightly-2"'))
    result = run(policy, table)
    assert result.exit_code == 1
    assert "egress to api.example.com:443 for ada: expected deny, got allow" in result.stdout


@pytest.mark.parametrize(
    "case",
    [
        'as = "ada"\nexpect = "allow"',
        'as = "ada"\noperation = "jobs.list"\negress = "a:1"\nexpect = "allow"',
        'as = "ada"\negress = "a:1"\nexpect = "own"',
    ],
)
def test_an_ambiguous_case_is_refused_by_its_number(policy: Path, tmp_path: Path, case: str) -> None:
    table = tmp_path / "expected.toml"
    table.write_text(f"[[case]]\n{case}\n")
    result = run(policy, table)
    assert isinstance(result.exception, PolicyError)
    assert "case 1" in str(result.exception)


def test_exactly_one_of_table_and_destination_is_required(policy: Path) -> None:
    assert isinstance(run(policy).exception, UsageError)
    assert isinstance(run(policy, "x.toml", "--egress", "a:1").exception, UsageError)
    assert isinstance(run(policy, "--egress", "a:1").exception, UsageError), "whose job?"
