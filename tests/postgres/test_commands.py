"""``sluice shared-store``, and the credential commands on machines that share their credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from sluice.cli.errors import RefusedError, UsageError
from sluice.cli.gateway import session, shared_store, token, user
from sluice.core import Home
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.credentials import TokenStore
from sluice.gateway.shared_store import shared_files_in
from tests.postgres.server import Server

runner = CliRunner()


@pytest.fixture
def homes(config: SharedStoreConfig, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Provide the homes of two machines that contain only ``sluice.toml``."""
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in msgspec.to_builtins(config).items())
    made = tmp_path / "one", tmp_path / "other"
    for home in made:
        home.mkdir(mode=0o700)
        (home / "sluice.toml").write_text(f"[gateway.shared_store]\n{settings}\n")
    yield made
    for home in made:
        if (files := shared_files_in(home / "gateway")) is not None:
            files.close()


def ok(app: object, *arguments: str, text: str | None = None) -> str:
    result = runner.invoke(app, arguments, input=text)  # type: ignore[arg-type]
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_create_key_never_overwrites_a_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert json.loads(ok(shared_store.app, "create-key", str(path), "--json")) == {"file": str(path)}
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert isinstance(runner.invoke(shared_store.app, ["create-key", str(path)]).exception, RefusedError)
    assert path.read_bytes() == before


def test_commands_on_any_machine_see_and_change_the_same_credentials(homes: tuple[Path, Path]) -> None:
    one, other = map(str, homes)
    made = json.loads(ok(token.app, "create", "ada", "--role", "viewer", "--home", one, "--json"))
    listed = json.loads(ok(token.app, "list", "--home", other, "--json"))["tokens"]
    assert [each["id"] for each in listed] == [made["id"]]
    ok(user.app, "add", "grace", "--password-stdin", "--home", other, text="correct horse battery")
    ok(token.app, "revoke", made["id"], "--home", other)
    assert "revoked" in ok(token.app, "list", "--home", one)
    assert "grace" in ok(user.app, "list", "--home", one)
    assert json.loads(ok(session.app, "list", "--home", one, "--json")) == {"sessions": []}
    status = [json.loads(ok(shared_store.app, "status", "--home", home, "--json")) for home in (one, other)]
    assert status[0] == status[1]
    assert status[0]["files"] == ["revocations.jsonl", "tokens.json", "users.json"]


def test_upload_needs_confirmation_and_takes_effect_on_every_machine(homes: tuple[Path, Path], server: Server) -> None:
    one, other = map(str, homes)
    made = json.loads(ok(token.app, "create", "ada", "--role", "viewer", "--home", one, "--json"))
    ok(shared_store.app, "status", "--home", other)
    for table in ("sluice_head", "sluice_files", "sluice_entries"):
        server.sql(f"DROP TABLE {table}", "sluice")
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sluice'")
    refused = runner.invoke(token.app, ["list", "--home", one])
    assert refused.exit_code != 0
    assert "gone back" in str(refused.exception)
    assert isinstance(runner.invoke(shared_store.app, ["upload", "--home", one]).exception, UsageError)
    assert json.loads(ok(shared_store.app, "upload", "--yes", "--home", one, "--json")) == {"files": 1}
    ok(shared_store.app, "status", "--home", other)
    assert {each.id for each in TokenStore(Home.at(Path(other))).read().records} == {made["id"]}


def test_shared_store_commands_without_settings_are_usage_errors(tmp_path: Path) -> None:
    for command in (["status"], ["upload", "--yes"]):
        refused = runner.invoke(shared_store.app, [*command, "--home", str(tmp_path)])
        assert isinstance(refused.exception, UsageError)
