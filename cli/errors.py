"""Errors of the command, and the exit code each means (see ``docs/howto/operate.md``)."""

from __future__ import annotations

from sluice.core.errors import SluiceError

EXIT_OK = 0
EXIT_NO = 1
"""The answer is no: not verified, audit failed, job failed."""
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
"""Could not reach or authenticate."""
EXIT_INTERNAL = 4
EXIT_INTERRUPTED = 130


class CommandError(SluiceError):
    """A verb cannot do what was asked; ``exit_code`` tells a script why."""

    exit_code = EXIT_INTERNAL


class UsageError(CommandError):
    """The command line or the configuration is wrong."""

    exit_code = EXIT_USAGE


class UnreachableError(CommandError):
    """The gateway could not be reached, or did not accept the credential."""

    exit_code = EXIT_UNREACHABLE


class AwayError(UnreachableError):
    """Nobody answers, or a part of the cluster is away: the same may work in a moment."""


class RefusedError(CommandError):
    """The cluster understood and said no."""

    exit_code = EXIT_NO
