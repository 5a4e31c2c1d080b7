"""``sluice policy replay`` through the command line, on logs written by the gateway's own writer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sluice.cli.main import app
from sluice.core.home import Home
from sluice.gateway.audit_log.chain import AccessPosition, AuditRecord
from sluice.gateway.audit_log.log import AuditLog, audit_file
from sluice.gateway.authz import DEFAULT_POLICY
from sluice.gateway.errors import AuditLogError

LINES = (
    b'{"time":"2026-03-01T00:00:00.000Z","request_id":"r1","principal":"bob","roles":"viewer","operation":"jobs.list",'
    b'"decision":"allowed","asked":null,"status":200}\n'
    b'{"time":"2026-03-02T00:00:00.000Z","request_id":"r2","principal":"bob","roles":"viewer","operation":"jobs.list",'
    b'"decision":"allowed","asked":"jobs.list","status":200}\n'
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path / "home")
    log = AuditLog(audit_file(home))
    log.append(
        AuditRecord(
            event="decision",
            principal="ada",
            operation="jobs.cancel",
            decision="allow",
            status=200,
            roles=("operator",),
        )
    )
    log.append_access_lines(LINES, after=AccessPosition("", 0), position=AccessPosition("f", len(LINES)))
    log.close()
    return home


@pytest.fixture
def stricter(tmp_path: Path) -> Path:
    """A policy under which viewers can no longer list jobs."""
    path = tmp_path / "policy.toml"
    path.write_text(DEFAULT_POLICY.read_text().replace('"*.read", "jobs.list",', '"*.read",'))
    path.chmod(0o600)
    return path


def replay(home: Home, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["policy", "replay", *map(str, arguments), "--home", str(home.root)])


def test_replay_of_the_current_policy_reports_no_changes(home: Home, tmp_path: Path) -> None:
    same = tmp_path / "same.toml"
    same.write_bytes(DEFAULT_POLICY.read_bytes())
    result = replay(home, same, "--since", "9999999d")
    assert result.exit_code == 0, result.output
    assert "nothing would have been decided otherwise" in result.stdout


def test_replay_of_a_stricter_policy_lists_changes_and_exits_with_1(home: Home, stricter: Path) -> None:
    result = replay(home, stricter, "--since", "2026-01-01")
    assert result.exit_code == 1, result.output
    assert "would be refused" in result.stdout
    assert "2026-03-01 00:00:00Z" in result.stdout
    document = json.loads(replay(home, stricter, "--since", "2026-01-01", "--format", "json").stdout)
    assert document["decided"] == 2
    (change,) = document["changes"]
    assert (change["principal"], change["operation"], change["count"]) == ("bob", "jobs.list", 1)
    assert change["effect"] == "refused"


def test_since_limits_the_records_that_are_replayed(home: Home, stricter: Path) -> None:
    assert replay(home, stricter, "--since", "2026-03-01T12:00").exit_code == 0


def test_replay_refuses_a_tampered_log(home: Home, stricter: Path) -> None:
    traffic = audit_file(home).with_name("traffic-000000001.jsonl")
    traffic.write_bytes(traffic.read_bytes().replace(b'"bob"', b'"eve"'))
    result = replay(home, stricter)
    assert isinstance(result.exception, AuditLogError)
    assert "bob" not in result.stdout


def test_replay_of_an_invalid_policy_names_the_mistake(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("version = 1\n[roles.x]\nallow = ['jobs.lisst']\n")
    path.chmod(0o600)
    result = replay(home, path)
    assert result.exit_code != 0
    assert "jobs.lisst" in str(result.exception)
