"""An error as the command prints it, in three parts: what went wrong, why, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import aiohttp
from rich.console import Console

from sluice.client import describe_connection_error
from sluice.core import SluiceError

MAX_CAUSES = 4
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.EACCES: "check who owns it and its permissions",
    errno.EPERM: "check who owns it and its permissions",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have your quota raised",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENOMEM: "free some memory",
}


def print_error(error: SluiceError, console: Console) -> None:
    """Write ``error`` to ``console``, without empty parts."""
    _line(console, f"error: {error.what}", style="red")
    for cause in causes(error):
        _line(console, f"  why:  {cause}")
    if error.remedy:
        _line(console, f"  do:   {error.remedy}")


def system_error(error: OSError) -> SluiceError:
    """Convert an error of the operating system: with the file it concerns, and the usual remedy."""
    about = f"{error.filename}: " if error.filename else ""
    remedy = _REMEDIES.get(error.errno or 0, "`sluice doctor` examines this machine")
    return SluiceError(f"{about}{error.strerror or str(error) or type(error).__name__}", remedy)


def internal_error(error: Exception) -> SluiceError:
    """The error for a fault in Sluice itself."""
    told = SluiceError("this is a fault in Sluice, not in what you did", "please report it, with the lines above")
    told.__cause__ = error
    return told


def causes(error: BaseException) -> Iterator[str]:
    """The causes of ``error``, the nearest first, without repetitions of its own text."""
    told = str(error).lower()
    cause = error.__cause__
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        words = _words(cause)
        # The text of an OSError with a file has its number and the path, which the error has told already.
        short = cause.strerror if isinstance(cause, OSError) and cause.filename else None
        if (short or words).lower() not in told:
            told += words.lower()
            yield words
        cause = cause.__cause__


def _words(cause: BaseException) -> str:
    match cause:
        case SluiceError():
            text = cause.what
        case aiohttp.ClientError() | OSError(filename=None):
            text = describe_connection_error(cause)
        case _:
            text = str(cause)
    first = text.strip().partition("\n")[0]
    return first or type(cause).__name__


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
