"""``sluice audit-log``, and the records of actions by other commands, through the command line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sluice.cli.audit_records import operator
from sluice.cli.main import app
from sluice.core.home import Home
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import AuditLog, audit_directory, audit_file
from sluice.gateway.errors import AuditLogError

RECORDS = [
    AuditRecord(
        event="decision",
        principal="ada",
        operation="jobs.list",
        method="GET",
        path="/v1/jobs",
        decision="allow",
        status=200,
        address="192.0.2.7",
        reason="granted by role",
    ),
    AuditRecord(
        event="decision", principal="eve", operation="jobs.submit", decision="deny", status=403, path="/x\x1b["
    ),
    AuditRecord(event="traffic", principal="ada", operation="jobs.read", decision="allow", at="2020-01-01T00:00:00Z"),
]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path / "home")
    log = AuditLog(audit_file(home))
    for record in RECORDS:
        log.append(record)
    log.event("policy.changed", "local:root", {"rules": 3})
    log.close()
    return home


def run(home: Home, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--home", str(home.root)])


def records(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_verify_accepts_an_intact_log(home: Home) -> None:
    result = run(home, "audit-log", "verify")
    assert result.exit_code == 0
    assert "6 lines in 1 segments are valid" in result.stdout
    document = json.loads(run(home, "audit-log", "verify", "--json").stdout)
    assert (document["verified"], document["lines"], document["unsigned"]) == (True, 6, 0)


def test_verify_refuses_a_changed_log(home: Home) -> None:
    path = audit_file(home)
    path.write_bytes(path.read_bytes().replace(b'"eve"', b'"bob"'))
    result = run(home, "audit-log", "verify")
    assert isinstance(result.exception, AuditLogError)
    assert "line 4 does not follow" in str(result.exception)


def test_verify_checks_against_a_kept_key_id_and_checkpoint(home: Home, tmp_path: Path) -> None:
    key = run(home, "audit-log", "key", "--json")
    kept = tmp_path / "kept.json"
    kept.write_text(run(home, "audit-log", "checkpoint").stdout)
    key_id = json.loads(key.stdout)["key_id"]
    assert run(home, "audit-log", "verify", "--key-id", key_id, "--checkpoint", str(kept)).exit_code == 0
    assert run(home, "audit-log", "verify", "--key-id", "0" * 32).exit_code != 0
    kept.write_text(kept.read_text().replace('"sequence":6', '"sequence":7'))
    assert run(home, "audit-log", "verify", "--checkpoint", str(kept)).exit_code != 0


def test_a_kept_checkpoint_detects_a_truncated_log_and_is_not_overwritten(home: Home, tmp_path: Path) -> None:
    kept = tmp_path / "witness.json"
    assert run(home, "audit-log", "verify", "--checkpoint", str(kept)).exit_code != 0, "there is none"
    assert run(home, "audit-log", "checkpoint", "--to", str(kept)).exit_code == 0
    first = kept.read_bytes()
    before = {path: path.read_bytes() for path in audit_directory(home).iterdir()}
    with contextlib.closing(AuditLog(audit_file(home))) as log:
        log.event("policy.changed", "local:root", {"rules": 4})
    assert run(home, "audit-log", "checkpoint", "--to", str(kept)).exit_code == 0
    assert kept.read_bytes() != first
    second = kept.read_bytes()
    for path, content in before.items():  # the log as it was, with the checkpoint of then
        path.write_bytes(content)
    assert run(home, "audit-log", "verify").exit_code == 0, "by itself it is whole"
    for arguments in (["verify", "--checkpoint"], ["checkpoint", "--to"]):
        result = run(home, "audit-log", *arguments, str(kept))
        assert isinstance(result.exception, AuditLogError)
        assert "ends at line 6, but line 8 was signed" in str(result.exception)
    assert kept.read_bytes() == second
    kept.write_bytes(first.replace(b'"sequence":6', b'"sequence":5'))
    assert run(home, "audit-log", "checkpoint", "--to", str(kept)).exit_code != 0


@pytest.mark.parametrize("place", ["http://localhost/x", "ftp://localhost/x", "https://a:b@localhost/x"])
def test_a_witness_url_without_https_or_with_a_password_is_refused(home: Home, place: str) -> None:
    result = run(home, "audit-log", "checkpoint", "--to", place)
    assert isinstance(result.exception, AuditLogError)


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        ([], [1, 2, 3, 4, 5, 6]),
        (["-n", "2"], [5, 6]),
        (["-n", "0"], []),
        (["--principal", "ada"], [2, 4]),
        (["--principal", "a*"], [2, 4]),
        (["--operation", "jobs.*"], [2, 3, 4]),
        (["--operation", "policy.changed"], [5]),
        (["--decision", "deny"], [3]),
        (["--decision", "allow", "--principal", "eve"], []),
        (["--since", "1h"], [1, 2, 3, 5, 6]),
        (["--until", "2021-01-01"], [4]),
    ],
)
def test_tail_filters_records_by_its_options(home: Home, options: list[str], sequences: list[int]) -> None:
    assert [each["sequence"] for each in records(run(home, "audit-log", "tail", "--json", *options))] == sequences


def test_human_readable_tail_has_no_control_characters(home: Home) -> None:
    result = run(home, "audit-log", "tail")
    assert "allow 200 ada jobs.list GET /v1/jobs from 192.0.2.7 (granted by role)" in result.stdout
    assert "act   policy.changed by local:root rules=3" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("options", [["--since", "yesterday"], ["--decision", "maybe"]])
def test_tail_refuses_invalid_filter_values(home: Home, options: list[str]) -> None:
    assert run(home, "audit-log", "tail", *options).exit_code != 0


def test_verbs_without_an_audit_log_fail(tmp_path: Path) -> None:
    for verb in ("verify", "tail", "key", "checkpoint"):
        assert run(Home.at(tmp_path / "nothing"), "audit-log", verb).exit_code != 0


def acts_of(home: Home) -> list[dict[str, Any]]:
    return [each for each in records(run(home, "audit-log", "tail", "--json", "-n", "100")) if each["event"] == "act"]


def test_token_creation_and_revocation_are_recorded_without_the_secret(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    token = run(home, "token", "create", "ada", "--role", "viewer").stdout.strip()
    identifier = token.split("_")[1]
    assert run(home, "token", "revoke", identifier).exit_code == 0
    created, revoked = acts_of(home)
    assert (created["kind"], created["principal"]) == ("token.created", operator())
    assert created["detail"] == {"id": identifier, "name": "ada", "role": "viewer"}
    assert (revoked["kind"], revoked["detail"]["id"]) == ("token.revoked", identifier)
    assert token.split("_")[2].encode() not in audit_file(home).read_bytes()


def test_certificate_operations_and_rotations_are_recorded(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    for arguments in (
        ("pki", "init"),
        ("pki", "issue", "taskmanager/tm-7", "--dns", "worker7.example.org"),
        ("pki", "issue", "taskmanager/tm-7", "--dns", "worker7.example.org"),
        ("pki", "renew", "--force"),
        ("pki", "revoke", "taskmanager/tm-7", "--reason", "key-compromise"),
        ("pki", "rotate", "prepare", "edge"),
    ):
        result = run(home, *arguments)
        assert result.exit_code == 0, (arguments, result.output, result.exception)
    found = acts_of(home)
    kinds = [each["kind"] for each in found]
    assert kinds == ["certificate.issued", "certificate.renewed", "certificate.revoked", "rotation.prepare"]
    assert found[0]["detail"]["identity"].endswith("/taskmanager/tm-7")
    assert found[0]["detail"]["serial"] in found[2]["detail"]["serials"].split()
    assert found[2]["detail"]["reason"] == "key-compromise"
    assert found[3]["detail"] == {"authority": "edge"}


def test_a_token_creation_that_cannot_be_recorded_fails_and_prints_no_token(home: Home) -> None:
    path = audit_directory(home) / "signing-key.pem"
    path.unlink()
    result = run(home, "token", "create", "ada", "--role", "viewer")
    assert isinstance(result.exception, AuditLogError)
    assert "slc_" not in result.output


def test_init_with_another_key_is_refused_for_an_existing_log(home: Home, tmp_path: Path) -> None:
    before = sorted(path.name for path in audit_directory(home).iterdir())
    uri = f"pkcs11:token=hsm?module-path={tmp_path / 'module.so'}&pin-source=file:{tmp_path / 'pin'}"
    result = run(home, "audit-log", "init", "--key", uri)
    assert result.exit_code == 1
    assert "has begun, and its key is not in token 'hsm'" in str(result.exception)
    assert sorted(path.name for path in audit_directory(home).iterdir()) == before
    assert run(home, "audit-log", "verify").exit_code == 0
    wrong = run(home, "audit-log", "init", "--key", uri.replace("pkcs11:token", "pkcs11:pin-value=87654321;token"))
    assert wrong.exit_code != 0
    assert "with a PIN in it" in str(wrong.exception)
    assert "87654321" not in f"{wrong.output}{wrong.exception}"
