"""The options of commands that use the gateway: its URL, its authority, and the credential."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from sluice.cli.option_groups import option_group
from sluice.cli.options import DEFAULT_HOME, HomeOption
from sluice.client import GatewayAccess, GatewayClient, gateway_client, resolve_access, whole_id
from sluice.core import Home

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", envvar="SLUICE_SERVER", help="The gateway's URL, https://HOST[:PORT]; default: the local cluster's."
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="SLUICE_CA", help="Authority of the gateway's certificate (PEM); default: the local one."
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the API token; default: the first that belongs to this gateway of $SLUICE_TOKEN, "
        "`sluice login` and <home>/token.",
    ),
]

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The gateway options of the command line; defaults come from the environment and the home."""

    home: Path
    server: str | None
    ca: Path | None
    token_file: Path | None

    @property
    def located_home(self) -> Home:
        """The home of the local cluster."""
        return Home.at(self.home)

    def access(self) -> GatewayAccess:
        """Where the gateway is, and the credential for it; raises :class:`sluice.client.errors.ClientError`."""
        return resolve_access(self.located_home, server=self.server, ca_file=self.ca, token_file=self.token_file)

    def call(self, call: Callable[[GatewayClient], Coroutine[Any, Any, _Value]]) -> _Value:
        """The result of ``call`` with a client of the gateway; raises :class:`sluice.client.errors.ClientError`."""
        access = self.access()

        async def main() -> _Value:
            async with gateway_client(access) as client:
                return await call(client)

        return asyncio.run(main())

    def get(self, path: str) -> Any:  # noqa: ANN401  JSON is what it is
        """The decoded answer to GET ``path``."""
        return self.call(lambda client: client.get(path))

    def get_of_job(self, job_id: str, below: str = "") -> Any:  # noqa: ANN401
        """GET the job whose id begins with ``job_id``, or the path ``below`` it."""

        async def call(client: GatewayClient) -> Any:  # noqa: ANN401
            return await client.get(f"/v1/jobs/{await whole_id(client, job_id)}{below}")

        return self.call(call)


through_gateway = option_group(
    "gateway",
    GatewayOptions,
    {
        "home": (HomeOption, DEFAULT_HOME),
        "server": (ServerOption, None),
        "ca": (CaOption, None),
        "token_file": (TokenOption, None),
    },
)
"""Gives a command these options in place of its parameter ``gateway``."""
