"""The command ``sluice compose init``."""

from __future__ import annotations

import stat
from pathlib import Path

from typer.testing import CliRunner

from sluice.cli.errors import UsageError
from sluice.cli.main import app


def test_compose_init_writes_a_set_and_replaces_it_only_with_force(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "site"
    arguments = ["compose", "init", str(directory), "--name", "blue", "--taskmanagers", "2"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert {path.name for path in directory.iterdir()} == {"compose.yaml", "sluice.toml", ".env", "seccomp.json"}
    # Containers read the settings as another user; nothing in them is secret.
    assert stat.S_IMODE((directory / "sluice.toml").stat().st_mode) == 0o644
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, UsageError)
    assert "already" in again.exception.what
    assert CliRunner().invoke(app, [*arguments, "--port", "9443", "--force"]).exit_code == 0
    assert "SLUICE_PORT=9443" in (directory / ".env").read_text()


def test_compose_init_with_invalid_options_writes_nothing(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["compose", "init", str(tmp_path / "site"), "--taskmanagers", "0"])
    assert isinstance(refused.exception, UsageError)
    assert not (tmp_path / "site").exists()
