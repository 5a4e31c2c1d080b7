"""What scripts and shells rely on: every verb can answer in JSON and supports completion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from sluice.cli.main import app

PROSE = {"demo"}
"""Shows somebody what happens."""
FILES = {"audit-log checkpoint", "completion", "config reference", "gateway render", "jobs receipt"}
"""What they print is a document in a form of its own."""


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every verb as its words and its command."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
        return
    for name, each in inner.items():
        yield from verbs(each, (*path, name))


def test_every_verb_except_the_listed_ones_has_a_json_option() -> None:
    without = {
        name for name, verb in verbs(get_command(app)) if "--json" not in {each for p in verb.params for each in p.opts}
    }
    # `run` and what a container runs are processes.
    assert {name for name in without if not name.startswith("run ")} == {*PROSE, *FILES, "compose ca"}


def test_compose_init_lists_its_files_in_json(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["compose", "init", str(tmp_path / "site"), "--json"])
    assert json.loads(told.stdout) == {
        "directory": str(tmp_path / "site"),
        "files": ["compose.yaml", "sluice.toml", ".env", "seccomp.json"],
    }


def test_verbs_are_completed_in_bash_zsh_and_fish() -> None:
    asked = {"_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": "sluice jo", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, [], env=asked, prog_name="sluice").stdout.split() == ["jobs"]
    for shell in ("bash", "zsh", "fish"):
        script = CliRunner().invoke(app, [], env={"_SLUICE_COMPLETE": f"source_{shell}"}, prog_name="sluice").stdout
        assert f"complete_{shell}" in script
