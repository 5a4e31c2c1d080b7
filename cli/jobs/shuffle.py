"""``sluice shuffle``: the remote shuffle service, through the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from sluice.cli.errors import EXIT_NO
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JsonOption
from sluice.cli.tables import print_table
from sluice.client import GatewayClient
from sluice.runtime.shuffle.control_plane import DiskReport, free_space

app = typer.Typer(no_args_is_help=True, help="The remote shuffle service: its workers and their data.")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@app.command()
@through_gateway
def status(
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the workers with their states, and the jobs of this cluster. Exit code 1 if no worker accepts shuffles."""
    document = gateway.get("/v1/shuffle")
    service = document["service"]
    if as_json:
        print(json.dumps(document))
    elif service is None:
        print("this cluster does not use the shuffle service")
    else:
        print(f"managed by {service['manager']}")
        print_table(
            ("WORKER", "STATE", "KEEPS", "MEMORY", "DISK FREE", "SPILLED", "WAITED s", "REASON"),
            [_worker_row(each) for each in service["workers"]],
            right=("KEEPS", "MEMORY", "DISK FREE", "SPILLED", "WAITED s"),
        )
        if service["jobs"]:
            print()
            print_table(
                ("JOB", "SHUFFLES", "KEEPS", "PUSHED", "FETCHED", "MAPS"),
                [_job_row(each) for each in service["jobs"]],
                right=("SHUFFLES", "KEEPS", "PUSHED", "FETCHED", "MAPS"),
            )
    if service is None or not any(each["state"] == "ACTIVE" for each in service["workers"]):
        raise typer.Exit(EXIT_NO)


WorkerArgument = Annotated[str, typer.Argument(help="Name of the worker, as `sluice shuffle status` shows it.")]


@app.command(epilog="Example: sluice shuffle drain shuffle-worker-2")
@through_gateway
def drain(
    worker: WorkerArgument,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Drain a worker: it gets no new shuffles and hands its data to others. It can be stopped when it is DRAINED."""
    gateway.call(_order(worker, "drain"))
    print(json.dumps({"draining": worker}) if as_json else f"{worker} takes no new shuffles")


@app.command(epilog="Example: sluice shuffle resume shuffle-worker-2")
@through_gateway
def resume(
    worker: WorkerArgument,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Return a drained worker to service."""
    gateway.call(_order(worker, "resume"))
    print(json.dumps({"resumed": worker}) if as_json else f"{worker} takes shuffles again")


def _order(worker: str, what: str) -> Callable[[GatewayClient], Coroutine[Any, Any, object]]:
    return lambda client: client.post(f"/v1/shuffle/workers/{quote(worker, safe='')}/{what}")


def _worker_row(worker: dict[str, Any]) -> tuple[str, ...]:
    report = worker["report"]
    return (
        worker["name"],
        worker["state"],
        size(worker["bytes"]),
        f"{size(report['memory_used'])} of {size(report['memory_limit'])}",
        size(free_space(msgspec.convert(report["disks"], tuple[DiskReport, ...]))),
        size(report["spilled_bytes"]),
        f"{report['waiting_seconds']:.1f}",
        worker["reason"],
    )


def _job_row(job: dict[str, Any]) -> tuple[str, ...]:
    moved = (size(job[key]) for key in ("bytes", "pushed_bytes", "fetched_bytes"))
    return (job["job_id"], str(job["shuffles"]), *moved, str(job["maps"]))


def size(count: int) -> str:
    """A number of bytes for people."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
