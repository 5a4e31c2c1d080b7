"""Imports verbs on demand. Importing all takes a second of processor time, and a command runs only one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

Command = TyperCommand | TyperGroup


class LazyCommands(MutableMapping[str, Any]):
    """The commands of a group by name; each is built from its module when it is looked up first.

    Args:
        places: ``module:attribute`` of each verb; the attribute is a function, or a ``typer.Typer`` with verbs of
            its own.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._loaded: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._loaded:
            self._loaded[name] = _command(name, self._places[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        found = self._places.pop(name, None) is not None
        if self._loaded.pop(name, None) is None and not found:
            raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is this verb, without importing it."""
        return name in self._places or name in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter({**self._places, **self._loaded})

    def __len__(self) -> int:
        return len({**self._places, **self._loaded})


def _command(name: str, place: str) -> Command:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    parent = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    return cast("Command", typer.main.get_group(parent).commands[name])
