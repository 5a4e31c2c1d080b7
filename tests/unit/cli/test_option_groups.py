"""Options that belong together reach a command as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from sluice.cli.option_groups import option_group


@dataclass(frozen=True, slots=True)
class Place:
    host: str
    port: int


with_place = option_group(
    "place",
    Place,
    {
        "host": (Annotated[str, typer.Option("--host", envvar="PLACE_HOST", help="Name.")], "localhost"),
        "port": (Annotated[int, typer.Option("--port", min=1)], 8443),
    },
)
app = typer.Typer()


@app.command()
@with_place
def visit(what: Annotated[str, typer.Argument()], *, place: Place, times: int = 1) -> None:
    """Go there."""
    typer.echo(f"{what} {place} {times}")


def test_an_option_group_is_built_from_defaults_options_and_environment() -> None:
    run = CliRunner()
    assert run.invoke(app, ["x"]).output == "x Place(host='localhost', port=8443) 1\n"
    there = run.invoke(app, ["x", "--port", "1", "--times", "2"], env={"PLACE_HOST": "h"})
    assert there.output == "x Place(host='h', port=1) 2\n"
    assert run.invoke(app, ["x", "--port", "0"]).exit_code == 2


def test_help_shows_the_options_of_a_group_instead_of_its_parameter() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    assert "Go there." in output
    assert output.index("--host") < output.index("--port") < output.index("--times")
    assert "--place" not in output
