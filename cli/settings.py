"""``sluice config``: the effective configuration and where each value comes from."""

from __future__ import annotations

import json

import typer

from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.reference import configuration_reference
from sluice.cli.tables import print_table

app = typer.Typer(no_args_is_help=True, help="Show the configuration: sluice.toml, SLUICE__SECTION__KEY, defaults.")


@app.command()
def show(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Every value with its origin (default, the file's path, environment), as `sluice up` uses it.

    Its clusters have the shuffle service unless `shuffle.enabled` says otherwise; a process that is started alone with
    `sluice run` uses the service only where that is set.
    """
    _, loaded = load_configuration(home, config)
    configuration = loaded.embedded()
    values = configuration.values()
    if as_json:
        print(
            json.dumps({key: {"value": value, "origin": configuration.origins[key]} for key, value in values.items()})
        )
        return
    rows = [(key, json.dumps(value), configuration.origins[key]) for key, value in values.items()]
    print_table(("KEY", "VALUE", "ORIGIN"), rows)


@app.command()
def reference() -> None:
    """Print a sluice.toml with every setting, its meaning and its default, all commented out."""
    print(configuration_reference(), end="")
