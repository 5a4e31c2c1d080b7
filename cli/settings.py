"""``sluice config``: the effective configuration and where each value comes from."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.config_reference import configuration_reference
from cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration

app = typer.Typer(no_args_is_help=True, help="Show the configuration: sluice.toml, SLUICE__SECTION__KEY, defaults.")


@app.command()
def show(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Every value with its origin (default, the file's path, environment)."""
    _, configuration = load_configuration(home, config)
    values = configuration.values()
    if as_json:
        print(
            json.dumps({key: {"value": value, "origin": configuration.origins[key]} for key, value in values.items()})
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("KEY", "VALUE", "ORIGIN"):
        table.add_column(column)
    for key, value in values.items():
        table.add_row(key, escape(json.dumps(value)), escape(configuration.origins[key]))
    Console().print(table)


@app.command()
def reference() -> None:
    """Print a sluice.toml with every setting, its meaning and its default, all commented out."""
    print(configuration_reference(), end="")
