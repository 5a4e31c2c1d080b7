"""``sluice drain`` and ``sluice undrain``: take a TaskManager out of service, and back."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console

from sluice.cli.errors import CommandError
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JsonOption
from sluice.client import GatewayClient

POLL_SECONDS = 0.5


@through_gateway
def drain(
    taskmanager: Annotated[str, typer.Argument(help="Its name, as `GET /v1/taskmanagers` shows it.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when the TaskManager has ended.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait at most.")] = 600.0,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Take a TaskManager out of service.

    It gets no new slots; its executors finish their tasks and hand their blocks on while others take their place
    (after `resources.drain_timeout` they are ended). Drivers on it go on to the end of their jobs: cancel a job that
    does not end, or stop it with a savepoint. Then the TaskManager leaves. Exit code 1 when it has not left in time.
    """
    seconds = timeout if wait else 0.0
    left = gateway.call(lambda client: _drain(client, taskmanager, seconds))
    if as_json:
        print(json.dumps({"taskmanager": taskmanager, "left": left}))
    elif left or not wait:
        print(f"{taskmanager} has left" if left else f"{taskmanager} is being drained")
    if wait and not left:
        raise CommandError(f"{taskmanager} has not left within {timeout:g} s", "it goes on; see `sluice jobs list`")


@through_gateway
def undrain(
    taskmanager: Annotated[str, typer.Argument(help="Its name.")],
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Return a draining TaskManager to service. One that has ended must be started again."""
    gateway.call(lambda client: client.post(f"/v1/taskmanagers/{taskmanager}/undrain"))
    print(json.dumps({"taskmanager": taskmanager, "draining": False}) if as_json else f"{taskmanager} is in service")


async def _drain(client: GatewayClient, taskmanager: str, seconds: float) -> bool:
    await client.post(f"/v1/taskmanagers/{taskmanager}/drain")
    console = Console(stderr=True)
    deadline = asyncio.get_running_loop().time() + seconds
    said: tuple[int, int] | None = None
    while asyncio.get_running_loop().time() < deadline:
        held = await _held(client, taskmanager)
        if held is None:
            return True
        if held != said:
            said = held
            console.print(f"{taskmanager} holds {held[0]} slots and {held[1]} drivers", highlight=False)
        await asyncio.sleep(POLL_SECONDS)
    return False


async def _held(client: GatewayClient, taskmanager: str) -> tuple[int, int] | None:
    """How many slots are held there, and how many drivers run; None when it has left."""
    document = await client.get("/v1/taskmanagers", limit=1000)
    found = next((each for each in document["taskmanagers"] if each["id"] == taskmanager), None)
    if found is None:
        return None
    return sum(slot["state"] != "FREE" for slot in found["slots"]), len(found["drivers"])
