"""Requests to restart drained TaskManagers of `sluice up`: a file for each, until it has left."""

from __future__ import annotations

from pathlib import Path

from sluice.cli.cluster.records import ProcessRecord, read_record
from sluice.cli.errors import CommandError
from sluice.core import Home, make_private_directory, write_atomic

COMEBACKS = "comebacks"
"""The folder below ``run``."""


def request(home: Home, name: str) -> ProcessRecord:
    """Request that ``name`` starts again after it has left; returns the process that leaves.

    Raises:
        CommandError: no `sluice up` of this home has started it.
    """
    child = find(home, name)
    if child is None:
        raise CommandError(
            f"`sluice up` of {home.root} has not started {name}", "drain it with --wait, then start its service again"
        )
    make_private_directory(home.run / COMEBACKS)
    write_atomic(_file(home, name), b"", mode=0o600)
    return child


def withdraw(home: Home, name: str) -> None:
    """Withdraw the request: it will not start again."""
    if find(home, name) is not None:
        _file(home, name).unlink(missing_ok=True)


def take(home: Home, name: str) -> bool:
    """Whether to start ``name`` again, which has left; removes the request."""
    try:
        _file(home, name).unlink()
    except FileNotFoundError:
        return False
    return True


def find(home: Home, name: str) -> ProcessRecord | None:
    """The process of that name that `sluice up` has started, if any."""
    record = read_record(home)
    return next((each for each in record.children if each.name == name), None) if record is not None else None


def _file(home: Home, name: str) -> Path:
    return home.run / COMEBACKS / name
