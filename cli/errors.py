"""Errors of the command, and the exit code of each (``docs/reference/home-directory.md``)."""

from __future__ import annotations

from sluice.client import AwayError, ClientError, RefusedError, UnreachableError, UsageError
from sluice.core import SluiceError

__all__ = [
    "EXIT_INTERNAL",
    "EXIT_INTERRUPTED",
    "EXIT_NO",
    "EXIT_OK",
    "EXIT_UNREACHABLE",
    "EXIT_USAGE",
    "AwayError",
    "ClientError",
    "CommandError",
    "RefusedError",
    "UnreachableError",
    "UsageError",
    "exit_code_of",
]

EXIT_OK = 0
EXIT_NO = 1
"""The answer is no: not verified, audit failed, job failed."""
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
"""The gateway could not be reached, or did not accept the credential."""
EXIT_INTERNAL = 4
EXIT_INTERRUPTED = 130


class CommandError(SluiceError):
    """A command failed for a reason other than the client's errors."""

    def __init__(self, what: str, remedy: str = "", *, exit_code: int = EXIT_INTERNAL) -> None:
        super().__init__(what, remedy)
        self.exit_code = exit_code


def exit_code_of(error: SluiceError) -> int:
    """The exit code of a command that ends with ``error``."""
    match error:
        case CommandError():
            return error.exit_code
        case UsageError():
            return EXIT_USAGE
        case UnreachableError():
            return EXIT_UNREACHABLE
        case RefusedError():
            return EXIT_NO
        case ClientError():
            return EXIT_INTERNAL
        case _:
            return EXIT_NO
