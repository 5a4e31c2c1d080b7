"""Environment variables of the command.

One that is set for a whole container or session applies to every verb in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import typer.main

from sluice.cli.compose.choices import ComposeSet
from sluice.cli.compose.files import render_compose
from sluice.cli.main import app


def _options(command: Any) -> Iterator[Any]:
    yield from command.params
    for each in getattr(command, "commands", {}).values():
        yield from _options(each)


def _meanings() -> dict[str, set[tuple[str, str]]]:
    """Return the options that read each variable, with the first words of their help."""
    meanings: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for option in _options(typer.main.get_command(app)):
        for variable in [option.envvar] if isinstance(option.envvar, str) else option.envvar or ():
            meanings[variable].add((option.opts[0], " ".join(option.help.split()[:4])))
    return meanings


def test_every_environment_variable_has_a_single_meaning() -> None:
    meanings = _meanings()
    assert {"SLUICE_CA", "SLUICE_CA_ADDRESS", "SLUICE_HOME", "SLUICE_SERVER"} <= meanings.keys()
    assert {variable: meant for variable, meant in meanings.items() if len(meant) > 1} == {}


def test_compose_sets_the_address_variable_of_joining_processes_and_not_sluice_ca() -> None:
    written = render_compose(ComposeSet())
    assert "SLUICE_CA_ADDRESS: ca:8444" in written
    assert "SLUICE_CA:" not in written
