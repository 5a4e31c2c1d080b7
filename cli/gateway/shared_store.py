"""``sluice shared-store``: the database that auth services of several machines share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import RefusedError, UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.core import Home, write_secret
from sluice.gateway import SharedStoreConfig
from sluice.gateway.shared_store import bind, new_key, open_files

app = typer.Typer(
    no_args_is_help=True,
    help="The PostgreSQL database that auth services of several machines share, [gateway.shared_store].",
)


@app.command("create-key", epilog="Example: sluice shared-store create-key /etc/sluice/shared-store.key")
def create_key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it (mode 0600).")],
    as_json: JsonOption = False,
) -> None:
    """Make the key that everything in the database is encrypted with. Give each machine the same."""
    if path.exists():
        raise RefusedError(f"{path} exists already", "what it has encrypted cannot be read with another key")
    write_secret(path, new_key())
    if as_json:
        typer.echo(json.dumps({"file": str(path)}))
        return
    typer.echo(f"key written to {path}; copy it to each machine with an auth service, and into a safe")


@app.command()
def status(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Bring this machine's copies up to date, and show how far they are. Exits with an error if that cannot be done."""
    located, settings = _settings(home, config)
    files = bind(located, settings)
    if as_json:
        typer.echo(json.dumps({"hosts": settings.hosts, "revision": files.revision, "files": files.names()}))
        return
    typer.echo(f"the copies in {located.gateway} are those of change {files.revision}: {', '.join(files.names())}")


@app.command()
def upload(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that the credentials of other machines are overwritten.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make this machine's tokens, users, sessions, revocations and keys those of all machines.

    For a database that was lost or has gone back. Choose the machine whose copies are the newest.
    """
    located, settings = _settings(home, config)
    if not yes:
        raise UsageError("this overwrites the credentials of all machines", "add --yes")
    count = open_files(located, settings).replace_store()
    if as_json:
        typer.echo(json.dumps({"files": count}))
        return
    typer.echo(f"{count} files of {located.gateway} are those of all machines now")


def _settings(path: Path, config: Path | None) -> tuple[Home, SharedStoreConfig]:
    home, configuration = load_configuration(path, config)
    if configuration.gateway.shared_store is None:
        raise UsageError("there is no shared store", "add the table [gateway.shared_store] to sluice.toml")
    return home, configuration.gateway.shared_store
