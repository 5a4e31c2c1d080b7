"""A command imports only the module of the verb that it runs."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

from sluice.cli.lazy_commands import LazyCommands
from sluice.cli.main import VERBS, app

IMPORTED = """
import sys
from sluice.cli.main import VERBS
{}
print(*({{place.partition(":")[0] for place in VERBS.values()}} & set(sys.modules)))
"""


def imported(then: str) -> set[str]:
    """Return the verb modules that a fresh Python process has imported after running ``then``."""
    done = subprocess.run([sys.executable, "-c", IMPORTED.format(then)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_command_itself_imports_no_verb() -> None:
    assert imported("pass") == set()


def test_a_verb_does_not_import_the_others() -> None:
    found = imported("from sluice.cli.lazy_commands import LazyCommands; LazyCommands(VERBS)['whoami']")
    assert "sluice.cli.gateway.login" in found
    assert not {"sluice.cli.cluster.commands", "sluice.cli.pki.commands", "sluice.cli.compose.commands"} & found


def test_every_verb_is_importable_from_its_place_in_the_table() -> None:
    commands = LazyCommands(VERBS)
    assert [commands[name].name for name in commands] == list(VERBS)


def test_verb_names_are_known_without_an_import() -> None:
    commands = LazyCommands({"away": "no.such.module:verb"})
    assert "away" in commands
    assert (list(commands), len(commands)) == (["away"], 1)
    del commands["away"]
    assert list(commands) == []


def test_an_unknown_verb_suggests_the_nearest_verb() -> None:
    answer = CliRunner().invoke(app, ["submti"])
    assert answer.exit_code == 2
    assert "submit" in answer.stderr


def test_the_version_is_shown() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("sluice ")
