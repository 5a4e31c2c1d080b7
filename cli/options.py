"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.core import Home

if TYPE_CHECKING:
    from sluice.cli.config import Configuration

HomeOption = Annotated[
    Path,
    typer.Option("--home", envvar="SLUICE_HOME", help="Where the local cluster keeps its state.", show_default=True),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="SLUICE_CONFIG", help="Configuration file; default: sluice.toml in home or here."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output instead of text.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or a unique beginning of it.")]

DEFAULT_HOME = Path(".sluice")


def load_configuration(home: Path, file: Path | None, **flags: object) -> tuple[Home, Configuration]:
    """The home and the effective configuration for a verb; flags are ``section__key=value``."""
    from sluice.cli.config import find_config_file, load  # late: it imports the settings of all parts

    located = Home.at(home)
    values = {name.replace("__", ".", 1): value for name, value in flags.items()}
    return located, load(find_config_file(file, located.root), flags=values)
