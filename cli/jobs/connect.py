"""``sluice connect``: what a notebook needs to reach Spark Connect through the gateway. Prints no secret."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from sluice.cli.errors import UnreachableError, UsageError
from sluice.cli.options import (
    DEFAULT_HOME,
    CaOption,
    HomeOption,
    JsonOption,
    ServerOption,
    TokenOption,
)
from sluice.client.access import (
    GatewayAccess,
    Source,
    announced_url,
    edge_bundle,
    held_credential,
    locate_gateway,
    resolve_access,
)
from sluice.client.rest_client import gateway_client
from sluice.core.files import read_bounded, write_public
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.x509.profiles import AuthorityKind

REMOTE_VARIABLE = "SPARK_REMOTE"
ROOTS_VARIABLE = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name of a variable, not a token

SESSION_PATH = "/v1/connect/session"
START_SECONDS = 240.0
_POLL_SECONDS = 0.5


def connection_string(url: str) -> str:
    """The address for ``SparkSession.builder.remote``, without the token."""
    address = urlsplit(url)
    host = address.hostname or ""
    return f"sc://{f'[{host}]' if ':' in host else host}:{address.port or 443}/;use_ssl=true"


def write_roots(home: Home) -> Path:
    """Write what gRPC needs to believe the gateway of ``home``, and return where it is; certificates, no secret.

    gRPC wants a chain up to a certificate that signed itself: our trust anchors are intermediates, so their root is
    added.
    """
    root = AuthorityStore(home.pki).certificate_file(AuthorityKind.ROOT)
    path = home.run / "connect-roots.pem"
    write_public(path, read_bounded(edge_bundle(home)) + read_bounded(root))
    return path


def connect(
    start: Annotated[bool, typer.Option("--start", help="Start the session now and wait until it takes work.")] = False,
    home: HomeOption = DEFAULT_HOME,
    server: ServerOption = None,
    ca: CaOption = None,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the connection string of Spark Connect, and the environment that a notebook needs besides.

    In a shell: eval "$(sluice connect)"; python -c 'from pyspark.sql import SparkSession;
    SparkSession.builder.getOrCreate().range(10).show()'
    """
    located = Home.at(home)
    url, vouching = locate_gateway(located, server, ca)
    roots = vouching if ca or server else write_roots(located)
    token = _token_expression(located, url, vouching, token_file)
    if start:
        asyncio.run(_started(resolve_access(located, server=server, ca_file=ca, token_file=token_file)))
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
    """What a shell replaces by the token that belongs to the gateway; whoever reads it learns no secret."""
    try:
        held = held_credential(home, url, ca_file, token_file)
    except UsageError:
        if token_file is not None or url != announced_url(home):
            raise
        return _read_by_shell(home.root / "token")  # which can still be made before the line is used
    if held.source is Source.LOGIN:
        raise UsageError(
            "Spark Connect needs an API token, and `sluice login` has a session",
            "make one with `sluice token create`, and name it with --token-file",
        )
    return '"$SLUICE_TOKEN"' if held.file is None else _read_by_shell(held.file)


def _read_by_shell(file: Path) -> str:
    return f'"$(cat {shlex.quote(str(file.absolute()))})"'


async def _started(target: GatewayAccess) -> Any:  # noqa: ANN401  JSON is what it is
    deadline = time.monotonic() + START_SECONDS
    async with gateway_client(target) as client:
        while True:
            session = await client.post(SESSION_PATH)
            if session["port"]:
                return session
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"the session did not start within {START_SECONDS:.0f} s: {session['pending_reason']}",
                    f"see `sluice jobs logs {session['job_id']}`",
                )
            await asyncio.sleep(_POLL_SECONDS)
