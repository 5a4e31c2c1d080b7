"""Progress is for people: a bar on a terminal, nothing elsewhere, and nothing when the work is done."""

from __future__ import annotations

import io

from rich.console import Console

from sluice.cli.progress import MAX_WORDS, bar, with_bar


def terminal() -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=True, width=120, color_system=None), written


def test_the_progress_bar_counts_steps_on_a_terminal() -> None:
    console, written = terminal()
    assert list(with_bar("issuing", "abc", 3, console)) == ["a", "b", "c"]
    assert "issuing" in written.getvalue()
    assert "3/3" in written.getvalue()
    # The last thing done is to erase it (ECMA-48, EL).
    assert written.getvalue().rstrip("\x1b[?25h").endswith("\x1b[2K")


def test_the_progress_bar_writes_nothing_without_a_terminal() -> None:
    written = io.StringIO()
    console = Console(file=written)
    assert list(with_bar("issuing", [1, 2], 2, console)) == [1, 2]
    with bar("checks", console) as shown:
        shown.expect(2)
        shown.advance("edge: TLS-01")
    assert written.getvalue() == ""


def test_the_current_step_is_shown_shortened_and_without_markup() -> None:
    console, written = terminal()
    with bar("followed", console) as shown:
        shown.show(1, 4, "taskmanager/[red]tm-1[/red]" + "x" * MAX_WORDS)
    assert "1/4" in written.getvalue()
    assert "taskmanager/[red]tm-1[/red]" in written.getvalue()
    assert "x" * MAX_WORDS not in written.getvalue()
