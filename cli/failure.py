"""An error as people read it, in three parts: what went wrong, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from pki.errors import SluiceError

MAX_CAUSES = 4


def tell(error: SluiceError, console: Console) -> None:
    """Write ``error`` to ``console``; parts that there are none of are left out."""
    _line(console, f"error: {error.what}", style="red")
    for cause in causes(error):
        _line(console, f"  why:  {cause}")
    if error.remedy:
        _line(console, f"  do:   {error.remedy}")


def causes(error: BaseException) -> Iterator[str]:
    """What led to ``error``, the nearest cause first, without what it says itself already."""
    told = str(error).lower()
    cause = error.__cause__
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        words = _words(cause)
        if words.lower() not in told:
            told += words.lower()
            yield words
        cause = cause.__cause__


def _words(cause: BaseException) -> str:
    text = cause.what if isinstance(cause, SluiceError) else str(cause)
    first = text.strip().partition("\n")[0]
    return first or type(cause).__name__


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
