"""Errors on a terminal have three parts: what, why, what to do."""

from __future__ import annotations

import errno
import io
import os

import pytest
from rich.console import Console

import sluice.cli.main
from sluice.cli.error_messages import causes, print_error, system_error
from sluice.cli.errors import EXIT_INTERNAL
from sluice.core.errors import SluiceError, StoreError


def told(error: SluiceError) -> list[str]:
    written = io.StringIO()
    print_error(error, Console(file=written))
    return written.getvalue().splitlines()


def failed(cause: BaseException, what: str, remedy: str = "") -> SluiceError:
    """Return an error as if raised from ``cause``."""
    error = StoreError(what, remedy)
    error.__cause__ = cause
    return error


def test_an_error_shows_its_message_cause_and_remedy() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    assert told(failed(refused, "the gateway at localhost:8443 does not answer", "start it: sluice up --detach")) == [
        "error: the gateway at localhost:8443 does not answer",
        "  why:  Connection refused",
        "  do:   start it: sluice up --detach",
    ]


def test_an_error_without_cause_and_remedy_shows_only_its_message() -> None:
    assert told(StoreError("there is no job 7")) == ["error: there is no job 7"]


def test_a_cause_already_in_the_message_is_not_repeated() -> None:
    assert list(causes(failed(ValueError("no such file"), "reading x failed: No such file"))) == []


def test_causes_are_listed_nearest_first_one_line_each() -> None:
    first = failed(ValueError("the key is\nsecret text"), "the identity is damaged", "not told here")
    assert list(causes(failed(first, "the process does not start"))) == ["the identity is damaged", "the key is"]
    assert list(causes(failed(TimeoutError(), "no answer"))) == ["no answer in time"]


def test_markup_in_error_messages_is_shown_as_text() -> None:
    assert told(failed(ValueError("[red]x[/red]"), "[bold]y"))[:2] == ["error: [bold]y", "  why:  [red]x[/red]"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.ENOENT, "check the path"), (errno.EIO, "`sluice doctor` examines this")],
)
def test_an_os_error_shows_its_path_and_a_remedy(number: int, remedy: str) -> None:
    lines = told(system_error(OSError(number, os.strerror(number), "/srv/sluice/x")))
    assert lines[0] == f"error: /srv/sluice/x: {os.strerror(number)}"
    assert lines[1].startswith(f"  do:   {remedy}")
    assert told(system_error(TimeoutError()))[0] == "error: TimeoutError"


def test_an_internal_error_shows_a_traceback_and_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("of the inside")

    monkeypatch.setattr(sluice.cli.main, "app", broken)
    with pytest.raises(SystemExit) as ended:
        sluice.cli.main.main()
    assert ended.value.code == EXIT_INTERNAL
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-3:] == [
        "error: this is a fault in Sluice, not in what you did",
        "  why:  of the inside",
        "  do:   please report it, with the lines above",
    ]
