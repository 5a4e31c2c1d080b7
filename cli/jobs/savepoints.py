"""``sluice jobs checkpoints``, ``sluice jobs savepoint`` and ``sluice savepoints``: state of streaming jobs."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sluice.cli.errors import EXIT_NO, AwayError, RefusedError
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JobArgument, JsonOption
from sluice.cli.tables import print_table
from sluice.client import GatewayClient, whole_id

app = typer.Typer(no_args_is_help=True, help="List savepoints of streaming jobs, and dispose of them.")

POLL_SECONDS = 0.3
AWAY_TRIES = 100
"""Most failed requests in a row while waiting for a savepoint."""


@through_gateway
def checkpoints(
    job_id: JobArgument,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Show what a streaming job has committed, and the checkpoint that it resumes from."""
    shown = gateway.get_of_job(job_id, "/checkpoints")
    if as_json:
        print(json.dumps(shown))
        return
    console = Console()
    console.print(f"completed  {shown['completed']}", highlight=False)
    if shown["restored"]:
        console.print(f" restored  {shown['restored']['number']}", highlight=False)
    for query in shown["queries"]:
        name = query["name"] or f"{query['id']} (no name: a later attempt starts it from the beginning)"
        line = f"    query  {name}: {query['state']}, batch {query['batch']}, {query['rows']} rows {query['error']}"
        console.print(line.rstrip(), highlight=False, markup=False)


@through_gateway
def savepoint(
    job_id: JobArgument,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the job, and take the savepoint when it has stopped.")
    ] = False,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint of a streaming job and print its path; `sluice submit --from-savepoint` resumes from it.

    Exit codes: 0 it is complete (and with --stop the job FINISHED), 1 it failed.
    """

    async def call(client: GatewayClient) -> dict[str, Any]:
        whole = await whole_id(client, job_id)
        asked = await client.post(f"/v1/jobs/{whole}/savepoints", {"stop": stop})
        return await _until_settled(client, whole, asked["savepoint_id"], stop=stop)

    settled = gateway.call(call)
    if as_json:
        print(json.dumps(settled))
    elif settled["state"] == "COMPLETED":
        print(settled["path"])
    else:
        raise RefusedError(f"{settled['id']}: {settled['error']}", "see `sluice jobs show`")
    raise typer.Exit(0 if settled["state"] == "COMPLETED" else EXIT_NO)


async def _until_settled(client: GatewayClient, job_id: str, savepoint_id: str, *, stop: bool) -> dict[str, Any]:
    away = 0
    while True:
        try:
            requests = (await client.get(f"/v1/jobs/{job_id}/savepoints"))["savepoints"]
            job = await client.get(f"/v1/jobs/{job_id}")
        except AwayError:
            away += 1
            if away > AWAY_TRIES:
                raise
            await asyncio.sleep(POLL_SECONDS)
            continue
        away = 0
        found: dict[str, Any] | None = next((each for each in requests if each["id"] == savepoint_id), None)
        if found is None:
            return {"id": savepoint_id, "state": "FAILED", "path": "", "error": "its JobManager was lost"}
        over = found["state"] == "FAILED" or not stop or job["end_time"] is not None
        if found["state"] != "IN_PROGRESS" and over:
            return found
        await asyncio.sleep(POLL_SECONDS)


@app.command("list")
@through_gateway
def list_savepoints(
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """All savepoints, the latest first."""
    found = gateway.get("/v1/savepoints")["savepoints"]
    if as_json:
        print(json.dumps(found))
        return
    rows = [
        (
            each["id"],
            each["job_name"],
            each["owner"],
            dt.datetime.fromtimestamp(each["created_at"] / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            str(each["checkpoint"]["number"]),
            str(each["size"]),
        )
        for each in found
    ]
    columns = ("SAVEPOINT", "JOB", "OWNER", "MADE", "CHECKPOINT", "BYTES")
    print_table(columns, rows, right=("CHECKPOINT", "BYTES"))


@app.command()
@through_gateway
def dispose(
    savepoint_id: str,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Remove a savepoint."""
    name = Path(savepoint_id).name
    gateway.call(lambda client: client.delete(f"/v1/savepoints/{name}"))
    print(json.dumps({"id": name, "disposed": True}) if as_json else f"disposed of {name}")
