"""How restart strategies and files given to ``sluice submit`` appear in the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.errors import UsageError
from sluice.cli.jobs.commands import comma_separated, parse_token_files
from sluice.cli.jobs.restart_options import restart_wish
from sluice.client.submission import build_submission, upload_parts
from sluice.runtime.restart_config import RestartStrategy


def test_an_unset_restart_strategy_is_not_sent() -> None:
    assert restart_wish(None, []) == {}


def test_restart_strategy_and_settings_are_parsed() -> None:
    wish = restart_wish(RestartStrategy.FIXED_DELAY, ["attempts=5", "delay=0.5", "initial-backoff=2"])
    assert wish == {"strategy": "fixed-delay", "attempts": 5, "delay": 0.5, "initial_backoff": 2.0}


@pytest.mark.parametrize("setting", ["attempts", "attempts=many", "attempts=-1", "attemps=3", "strategy=none", "=3"])
def test_an_invalid_restart_setting_is_wrong_usage(setting: str) -> None:
    with pytest.raises(UsageError):
        restart_wish(None, [setting])


def test_a_misspelled_restart_setting_suggests_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        restart_wish(None, ["attemps=3"])
    assert "attempts" in caught.value.remedy


def test_files_modules_and_archives_become_upload_parts(tmp_path: Path) -> None:
    for name in ("a.csv", "m.py", "n.whl", "e.tgz", "f.zip"):
        (tmp_path / name).touch()
    modules = [Path(each) for each in comma_separated([f"{tmp_path}/m.py, {tmp_path}/n.whl"])]
    parts, names = upload_parts([tmp_path / "a.csv"], modules, [f"{tmp_path}/e.tgz#env", f"{tmp_path}/f.zip"])
    assert [(part, path.name) for part, path in parts] == [
        ("file", "a.csv"),
        ("py_file", "m.py"),
        ("py_file", "n.whl"),
        ("archive", "e.tgz"),
        ("archive", "f.zip"),
    ]
    assert names == {"e.tgz": "env"}
    assert upload_parts([], [], comma_separated(None)) == ([], {})


@pytest.mark.parametrize("py_file", ["missing.py", "."])
def test_a_path_that_is_not_a_file_is_wrong_usage(py_file: str) -> None:
    with pytest.raises(UsageError):
        upload_parts([], [Path(py_file)], [])


def test_identity_tokens_are_parsed_into_audience_and_name() -> None:
    options = ["https://vault.example.com/?a=b=vault", "sts.amazonaws.com=aws"]
    assert parse_token_files(options) == {"vault": "https://vault.example.com/?a=b", "aws": "sts.amazonaws.com"}


@pytest.mark.parametrize("options", [["vault"], ["=vault"], ["vault="], [""], ["a=x", "b=x"]])
def test_a_malformed_identity_token_option_is_wrong_usage(options: list[str]) -> None:
    with pytest.raises(UsageError, match="AUDIENCE=NAME"):
        parse_token_files(options)


def test_the_aws_role_is_attached_to_the_first_token_file(tmp_path: Path) -> None:
    pipeline = tmp_path / "p.py"
    pipeline.write_text("")
    role = "arn:aws:iam::1:role/x"
    submission = build_submission(pipeline, token_files={"aws": "sts", "vault": "vault"}, aws_role_arn=role)
    assert submission.request["token_files"] == [
        {"name": "aws", "audience": "sts", "aws_role_arn": role},
        {"name": "vault", "audience": "vault"},
    ]
    assert "token_files" not in build_submission(pipeline).request
    with pytest.raises(UsageError, match="without a token file"):
        build_submission(pipeline, aws_role_arn=role)
