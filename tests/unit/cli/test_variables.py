"""Environment variables of the command: one that is set for a whole container or session reaches every verb in it."""

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
    """The options that read each variable, with how their help begins."""
    meanings: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for option in _options(typer.main.get_command(app)):
        for variable in [option.envvar] if isinstance(option.envvar, str) else option.envvar or ():
            meanings[variable].add((option.opts[0], " ".join(option.help.split()[:4])))
    return meanings


def test_every_variable_means_one_thing() -> None:
    meanings = _meanings()
    assert {"SLUICE_CA", "SLUICE_CA_ADDRESS", "SLUICE_HOME", "SLUICE_SERVER"} <= meanings.keys()
    assert {variable: meant for variable, meant in meanings.items() if len(meant) > 1} == {}


def test_no_client_verb_in_a_container_reads_what_is_set_for_the_process_that_joins() -> None:
    written = render_compose(ComposeSet())
    assert "SLUICE_CA_ADDRESS: ca:8444" in written
    assert "SLUICE_CA:" not in written
