"""What the command line says about secrets."""

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
def test_a_secret_of_a_job_has_a_name_a_version_and_a_file(text: str, reference: dict[str, object]) -> None:
    assert secret_reference(text) == reference


@pytest.mark.parametrize(
    "text", ["", "=x", "db@", "db@0", "db@x", "a/b", "../a", "db=../x", "db=/etc/x", "db=a/b", "a b"]
)
def test_what_names_no_secret_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        secret_reference(text)


def test_executors_get_what_is_asked_for_them(tmp_path: Path) -> None:
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
def test_a_grant_says_to_whom(text: str, grant: dict[str, str]) -> None:
    assert parse_grantee(text) == grant


@pytest.mark.parametrize("text", ["ada", "user:", "host:x", "job:nightly", "job:/nightly", "job:ada/", ""])
def test_a_job_without_its_owner_is_nobody(text: str) -> None:
    with pytest.raises(UsageError):
        parse_grantee(text)


def test_a_value_is_never_an_argument(tmp_path: Path) -> None:
    done = sluice("secret", "put", "db", "hunter2", environment={"SLUICE_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "--file" in sluice("secret", "put", "--help").stdout


@pytest.mark.parametrize("file", ["-", "nothing-here"])
def test_an_empty_value_is_refused_before_anything_is_sent(tmp_path: Path, file: str) -> None:
    done = sluice("secret", "put", "db", "--file", file, environment={"SLUICE_HOME": str(tmp_path)})
    assert done.returncode == 2, done.stderr


def test_a_key_for_several_machines_is_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    done = sluice("secret", "new-key", tmp_path / "keys", "--json")
    assert done.returncode == 0, done.stderr
    (key,) = (tmp_path / "keys").iterdir()
    assert key.stem in done.stdout
    assert key.stat().st_mode & 0o777 == 0o600


def test_other_targets_have_no_secrets(tmp_path: Path) -> None:
    pipeline = tmp_path / "p.py"
    pipeline.write_text("", encoding="utf-8")
    done = sluice(
        "submit", pipeline, "--target", "kubernetes", "--secret", "db", environment={"SLUICE_HOME": str(tmp_path)}
    )
    assert done.returncode == 2
    assert "--secret with --target kubernetes" in done.stderr
