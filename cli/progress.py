"""Progress bars: on a terminal only, on standard error, removed when the work is done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_T = TypeVar("_T")
BAR_CHARACTERS = 28
MAX_WORDS = 60
"""Most characters of the current step; longer text is cut, so that the bar stays on one line."""


class Bar:
    """One bar; without a terminal it shows nothing. Thread-safe."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._total = 0

    def expect(self, number: int) -> None:
        """Add to the number of steps."""
        self._total += number
        self._progress.update(self._task, total=self._total)

    def advance(self, words: str = "") -> None:
        """Count a finished step, described by ``words``."""
        self._progress.update(self._task, advance=1, words=escape(words[:MAX_WORDS]))

    def show(self, done: int, total: int, words: str = "") -> None:
        """Set the number of finished steps and the total."""
        self._total = total
        self._progress.update(self._task, completed=done, total=total, words=escape(words[:MAX_WORDS]))


@contextlib.contextmanager
def bar(what: str, console: Console | None = None) -> Iterator[Bar]:
    """Show a bar for ``what`` while the block runs."""
    console = Console(stderr=True) if console is None else console
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_CHARACTERS),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bar(progress, progress.add_task(what, total=None, words=""))


def with_bar(what: str, steps: Iterable[_T], number: int, console: Console | None = None) -> Iterator[_T]:
    """Iterate over ``steps`` with a bar."""
    with bar(what, console) as shown:
        shown.expect(number)
        for step in steps:
            shown.advance()
            yield step
