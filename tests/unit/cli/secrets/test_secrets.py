"""The commands and options for secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.errors import UsageError
from sluice.cli.secrets.commands import parse_grantee
from sluice.client.submission import build_submission, secret_reference
from tests.command import sluice


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("db-password", {"name": "db-password"}),
        ("db=password", {"name": "db", "file": "password"}),
        ("db@3", {"name": "db", "version": 3}),
        ("api.key_1@12=key", {"name": "api.key_1", "version": 12, "file": "key"}),
    ],
)
def test_a_secret_reference_is_parsed_into_name_version_and_file(text: str, reference: dict[str, object]) -> None:
    assert secret_reference(text) == reference


@pytest.mark.parametrize(
    "text", ["", "=x", "db@", "db@0", "db@x", "a/b", "../a", "db=../x", "db=/etc/x", "db=a/b", "a b"]
)
def test_a_malformed_secret_reference_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        secret_reference(text)


def test_executor_secrets_are_marked_in_the_submission(tmp_path: Path) -> None:
    pipeline = tmp_path / "p.py"
    pipeline.write_text("", encoding="utf-8")
    request = build_submission(pipeline, secrets=["a"], executor_secrets=["b=c"]).request
    assert request["secrets"] == [{"name": "a"}, {"name": "b", "file": "c", "executors": True}]
    assert "secrets" not in build_submission(pipeline).request


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("user:ada", {"kind": "user", "name": "ada"}),
        ("role:reporting", {"kind": "role", "name": "reporting"}),
        ("group:data/eng", {"kind": "group", "name": "data/eng"}),
        ("job:ada/nightly/load", {"kind": "job", "owner": "ada", "name": "nightly/load"}),
    ],
)
def test_a_grantee_is_parsed_into_kind_and_name(text: str, grant: dict[str, str]) -> None:
    assert parse_grantee(text) == grant


@pytest.mark.parametrize("text", ["ada", "user:", "host:x", "job:nightly", "job:/nightly", "job:ada/", ""])
def test_a_malformed_grantee_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_grantee(text)


def test_a_secret_value_as_an_argument_is_refused(tmp_path: Path) -> None:
    done = sluice("secret", "put", "db", "hunter2", environment={"SLUICE_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "--file" in sluice("secret", "put", "--help").stdout


@pytest.mark.parametrize("file", ["-", "nothing-here"])
def test_secret_put_refuses_an_empty_or_missing_value(tmp_path: Path, file: str) -> None:
    done = sluice("secret", "put", "db", "--file", file, environment={"SLUICE_HOME": str(tmp_path)})
    assert done.returncode == 2, done.stderr


def test_new_key_writes_a_private_file(tmp_path: Path) -> None:
    done = sluice("secret", "new-key", tmp_path / "keys", "--json")
    assert done.returncode == 0, done.stderr
    (key,) = (tmp_path / "keys").iterdir()
    assert key.stem in done.stdout
    assert key.stat().st_mode & 0o777 == 0o600


def test_secrets_are_refused_for_the_kubernetes_target(tmp_path: Path) -> None:
    pipeline = tmp_path / "p.py"
    pipeline.write_text("", encoding="utf-8")
    done = sluice(
        "submit", pipeline, "--target", "kubernetes", "--secret", "db", environment={"SLUICE_HOME": str(tmp_path)}
    )
    assert done.returncode == 2
    assert "--secret with --target kubernetes" in done.stderr
