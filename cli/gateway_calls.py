"""Calls of a command through the gateway, from the options that say which gateway and with which credential."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sluice.client.access import resolve_access
from sluice.client.jobs import whole_id
from sluice.client.rest_client import GatewayClient, gateway_client
from sluice.core.home import Home

_Value = TypeVar("_Value")


def call_gateway(
    home: Path,
    server: str | None,
    ca: Path | None,
    token_file: Path | None,
    call: Callable[[GatewayClient], Coroutine[Any, Any, _Value]],
) -> _Value:
    """The result of ``call`` with a client of the gateway; raises :class:`sluice.client.errors.ClientError`."""
    access = resolve_access(Home.at(home), server=server, ca_file=ca, token_file=token_file)

    async def main() -> _Value:
        async with gateway_client(access) as client:
            return await call(client)

    return asyncio.run(main())


def fetch(home: Path, server: str | None, ca: Path | None, token_file: Path | None, path: str) -> Any:  # noqa: ANN401  JSON is what it is
    """The decoded answer to GET ``path``."""
    return call_gateway(home, server, ca, token_file, lambda client: client.get(path))


def fetch_of_job(
    home: Path, server: str | None, ca: Path | None, token_file: Path | None, job_id: str, below: str = ""
) -> Any:  # noqa: ANN401
    """GET the job whose id begins with ``job_id``, or what is ``below`` it."""

    async def call(client: GatewayClient) -> Any:  # noqa: ANN401
        return await client.get(f"/v1/jobs/{await whole_id(client, job_id)}{below}")

    return call_gateway(home, server, ca, token_file, call)
