"""``sluice token`` as a user types it."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sluice.cli.errors import UsageError
from sluice.cli.gateway.token import app, parse_lifetime
from sluice.core.home import Home
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.errors import InvalidTokenRequest, TokenNotFound


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--home", str(home)])


def test_create_prints_the_token_alone_on_standard_output(home: Path) -> None:
    result = run(home, "create", "ada", "--role", "submitter")
    assert result.exit_code == 0
    token = result.stdout.strip()
    assert TokenStore(Home.at(home)).read().authenticate(token, now=time.time()).name == "ada"
    assert token not in result.stderr
    assert "not shown again" in result.stderr


def test_create_prints_the_token_and_its_record_as_json(home: Path) -> None:
    document = json.loads(run(home, "create", "ada", "--role", "viewer", "--ttl", "2h", "--json").stdout)
    assert set(document) == {"id", "name", "role", "scopes", "expires_at", "token"}
    assert (document["name"], document["role"]) == ("ada", "viewer")


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_create_into_a_file_prints_no_secret(home: Path, tmp_path: Path, as_json: tuple[str, ...]) -> None:
    file = tmp_path / "token"
    result = run(home, "create", "ada", "--role", "viewer", "--output", str(file), *as_json)
    token = file.read_text().strip()
    assert token.startswith("slc_")
    assert token not in result.output
    assert str(file) in result.output.replace("\n", "")
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_older_token_file_is_replaced_and_any_other_file_is_not(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    run(home, "create", "ada", "--role", "viewer", "--output", str(file))
    first = file.read_text()
    assert run(home, "create", "ada", "--role", "viewer", "--output", str(file)).exit_code == 0
    assert file.read_text() != first
    file.write_text("my thesis")
    refused = run(home, "create", "ada", "--role", "viewer", "--output", str(file))
    assert isinstance(refused.exception, UsageError)
    assert file.read_text() == "my thesis"
    assert len(TokenStore(Home.at(home)).read().records) == 2, "nothing is made that nobody has"


def test_create_into_a_missing_directory_makes_no_token(home: Path, tmp_path: Path) -> None:
    result = run(home, "create", "ada", "--role", "viewer", "--output", str(tmp_path / "none" / "token"))
    assert isinstance(result.exception, UsageError)
    assert TokenStore(Home.at(home)).read().records == ()


def test_role_is_required_and_checked(home: Path) -> None:
    assert run(home, "create", "ada").exit_code == 2
    assert isinstance(run(home, "create", "ada", "--role", "root").exception, UsageError)


def test_name_and_lifetime_are_checked(home: Path) -> None:
    assert isinstance(run(home, "create", "a b", "--role", "viewer").exception, InvalidTokenRequest)
    assert isinstance(run(home, "create", "a", "--role", "viewer", "--ttl", "400d").exception, InvalidTokenRequest)
    assert isinstance(run(home, "create", "a", "--role", "viewer", "--ttl", "soon").exception, UsageError)


def test_list_shows_states_and_no_secret_and_no_hash(home: Path) -> None:
    token = run(home, "create", "ada", "--role", "admin").stdout.strip()
    run(home, "create", "eve", "--role", "viewer")
    identifier = token.split("_")[1]
    assert run(home, "revoke", identifier).stdout == f"revoked token {identifier} of ada\n"
    text, document = run(home, "list"), json.loads(run(home, "list", "--json").stdout)
    states = {entry["name"]: entry["state"] for entry in document["tokens"]}
    assert states == {"ada": "revoked", "eve": "active"}
    (record, _) = TokenStore(Home.at(home)).read().records
    for output in (text.stdout, json.dumps(document)):
        assert token.split("_")[2] not in output
        assert record.sha256 not in output
    assert [line.split()[:4] for line in text.stdout.splitlines()[:2]] == [
        ["ID", "NAME", "ROLE", "STATE"],
        [identifier, "ada", "admin", "revoked"],
    ]


def test_list_without_tokens_is_empty_and_names_the_create_command(home: Path) -> None:
    assert json.loads(run(home, "list", "--json").stdout) == {"tokens": []}
    result = run(home, "list")
    assert result.stdout == ""
    assert "sluice token create" in result.stderr


def test_revoking_an_unknown_token_is_an_error(home: Path) -> None:
    assert isinstance(run(home, "revoke", "000000000000").exception, TokenNotFound)


def test_revoke_prints_the_revoked_tokens_as_json(home: Path) -> None:
    identifier = json.loads(run(home, "create", "ada", "--role", "viewer", "--json").stdout)["id"]
    document = json.loads(run(home, "revoke", identifier, "--json").stdout)
    assert [entry["id"] for entry in document["revoked"]] == [identifier]
    assert document["revoked"][0]["revoked_at"]


@pytest.mark.parametrize("verb", [(), ("create",), ("list",), ("revoke",)])
def test_help_mentions_tokens(verb: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*verb, "--help"])
    assert result.exit_code == 0
    assert "token" in result.stdout


@pytest.mark.parametrize(
    ("text", "lifetime"),
    [
        ("30d", dt.timedelta(days=30)),
        ("12h", dt.timedelta(hours=12)),
        ("90m", dt.timedelta(minutes=90)),
        ("45s", dt.timedelta(seconds=45)),
    ],
)
def test_lifetimes_are_parsed(text: str, lifetime: dt.timedelta) -> None:
    assert parse_lifetime(text) == lifetime


@pytest.mark.parametrize(
    "text", ["", "0d", "-1d", "1", "d", "1.5h", "1w", "1d2h", "99999999d", " 1d", "1d\n", "\u0661d"]
)
def test_a_malformed_lifetime_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a lifetime"):
        parse_lifetime(text)
