"""Tables on standard output: as wide as the terminal, and never cut when there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 10_000
"""Width for programs and files, which have no right margin."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print ``rows`` under ``columns``; those in ``right`` are numbers. Cells are text, never markup."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    console.print(table)
