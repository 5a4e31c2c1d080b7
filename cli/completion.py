"""``sluice completion``: the script that completes verbs and options in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

PROGRAM = "sluice"
_VARIABLE = "_SLUICE_COMPLETE"
"""The variable's name, as typer derives it from the program's name."""


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that is to complete.")]) -> None:
    """Print the completion script of a shell, for packages and dotfiles.

    Unlike --show-completion it does not depend on the shell that runs it.
    """
    from typer._completion_shared import get_completion_script  # there is no public name

    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=_VARIABLE, shell=shell.value))
