"""``sluice connect``: prints the settings of a notebook for Spark Connect through the gateway, without secrets."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JsonOption
from sluice.client import (
    announced_url,
    connection_string,
    held_credential,
    local_roots,
    locate_gateway,
    require_api_token,
    start_session,
)
from sluice.core import Home, write_public

REMOTE_VARIABLE = "SPARK_REMOTE"
ROOTS_VARIABLE = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name of a variable, not a token


def write_roots(home: Home) -> Path:
    """Write the certificates with which gRPC verifies the gateway of ``home``; returns their file."""
    path = home.run / "connect-roots.pem"
    write_public(path, local_roots(home))
    return path


@through_gateway
def connect(
    start: Annotated[bool, typer.Option("--start", help="Start the session now and wait until it is ready.")] = False,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            help="With --start: secret that the session gets as a file in memory, /run/secrets/NAME: "
            "NAME[@VERSION][=FILE]; repeatable.",
        ),
    ] = None,
    executor_secret: Annotated[
        list[str] | None,
        typer.Option("--executor-secret", help="The same for the session and its executors; repeatable."),
    ] = None,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Print the connection string of Spark Connect and the environment variables that a notebook needs.

    In a shell: eval "$(sluice connect)"; python -c 'from pyspark.sql import SparkSession;
    SparkSession.builder.getOrCreate().range(10).show()'
    """
    home = gateway.located_home
    url, vouching = locate_gateway(home, gateway.server, gateway.ca)
    roots = vouching if gateway.ca or gateway.server else write_roots(home)
    token = _token_expression(home, url, vouching, gateway.token_file)
    if start:
        gateway.call(partial(start_session, secrets=secret or (), executor_secrets=executor_secret or ()))
    elif secret or executor_secret:
        raise UsageError("--secret without --start", "a session gets its secrets when it starts")
    environment = {REMOTE_VARIABLE: connection_string(url)}
    if roots is not None:
        environment[ROOTS_VARIABLE] = str(roots.absolute())
    if as_json:
        document = {
            "remote": environment[REMOTE_VARIABLE],
            "environment": environment,
            "token_variable": TOKEN_VARIABLE,
        }
        typer.echo(json.dumps(document))
        return
    for name, value in environment.items():
        typer.echo(f"export {name}={shlex.quote(value)}")
    typer.echo(f"export {TOKEN_VARIABLE}={token}")


def _token_expression(home: Home, url: str, ca_file: Path | None, token_file: Path | None) -> str:
    """A shell expression that yields the gateway's token without containing it."""
    try:
        held = held_credential(home, url, ca_file, token_file)
    except UsageError:
        if token_file is not None or url != announced_url(home):
            raise
        return _read_by_shell(home.root / "token")  # the file may be created before the line is used
    require_api_token(held)
    return '"$SLUICE_TOKEN"' if held.file is None else _read_by_shell(held.file)


def _read_by_shell(file: Path) -> str:
    return f'"$(cat {shlex.quote(str(file.absolute()))})"'
