"""``sluice drain`` and ``sluice undrain``: take a TaskManager out of service, and back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer
from rich.console import Console

from sluice.cli.cluster import comebacks
from sluice.cli.errors import EXIT_NO, CommandError
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JsonOption
from sluice.client import ClientError, GatewayClient
from sluice.core import Home

POLL_SECONDS = 0.5


@through_gateway
def drain(
    taskmanager: Annotated[str, typer.Argument(help="Its name, as `GET /v1/taskmanagers` shows it.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when the TaskManager has ended.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait at most.")] = 600.0,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Start it again when it has left, as after an upgrade (on a `sluice up` here)."),
    ] = False,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Take a TaskManager out of service.

    It gets no new slots; its executors finish their tasks and hand their blocks on while others take their place
    (after `resources.drain_timeout` they are ended). Drivers on it go on to the end of their jobs: cancel a job that
    does not end, or stop it with a savepoint. Then the TaskManager leaves. Exit code 1 when it has not left in time.
    With `--restart` it starts again as soon as it has left, with the programs that are installed then.
    """
    seconds, home = timeout if wait else 0.0, gateway.located_home
    if restart:
        done, left = "started again", gateway.call(lambda client: _drain_and_start(client, taskmanager, seconds, home))
    else:
        comebacks.withdraw(home, taskmanager)
        done, left = "left", gateway.call(lambda client: _drain(client, taskmanager, seconds))
    if as_json:
        print(json.dumps({"taskmanager": taskmanager, "left": left}))
    elif left or not wait:
        print(f"{taskmanager} has {done}" if left else f"{taskmanager} is being drained")
    if wait and not left:
        raise CommandError(
            f"{taskmanager} has not {done} within {timeout:g} s",
            "it goes on; see `sluice jobs list`",
            exit_code=EXIT_NO,
        )


@through_gateway
def undrain(
    taskmanager: Annotated[str, typer.Argument(help="Its name.")],
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Return a draining TaskManager to service. One that has ended must be started again."""
    gateway.call(lambda client: client.post(f"/v1/taskmanagers/{taskmanager}/undrain"))
    comebacks.withdraw(gateway.located_home, taskmanager)
    print(json.dumps({"taskmanager": taskmanager, "draining": False}) if as_json else f"{taskmanager} is in service")


async def _drain(client: GatewayClient, taskmanager: str, seconds: float) -> bool:
    """Drain it; returns whether it has left."""
    await client.post(f"/v1/taskmanagers/{taskmanager}/drain")
    console = Console(stderr=True)
    said: tuple[int, int] | None = None

    async def left() -> bool:
        nonlocal said
        held = await _held(client, taskmanager)
        if held is not None and held != said:
            said = held
            console.print(f"{taskmanager} holds {held[0]} slots and {held[1]} drivers", highlight=False)
        return held is None

    return await _until(left, seconds)


async def _drain_and_start(client: GatewayClient, taskmanager: str, seconds: float, home: Home) -> bool:
    """Drain and restart it; returns whether it has left, and `sluice up` has started another process."""
    leaving = comebacks.request(home, taskmanager)

    async def back() -> bool:
        now = comebacks.find(home, taskmanager)
        return now not in {None, leaving} and await _held(client, taskmanager) is not None

    begun = time.monotonic()
    try:
        left = await _drain(client, taskmanager, seconds)
    except ClientError:
        comebacks.withdraw(home, taskmanager)
        raise
    return left and await _until(back, seconds - (time.monotonic() - begun))


async def _until(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await condition():
            return True
        await asyncio.sleep(POLL_SECONDS)
    return False


async def _held(client: GatewayClient, taskmanager: str) -> tuple[int, int] | None:
    """The number of its held slots, and of its drivers; None when it has left."""
    document = await client.get("/v1/taskmanagers", limit=1000)
    found = next((each for each in document["taskmanagers"] if each["id"] == taskmanager), None)
    if found is None:
        return None
    return sum(slot["state"] != "FREE" for slot in found["slots"]), len(found["drivers"])
