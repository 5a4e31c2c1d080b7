"""``sluice queues``: the queues that share the slots for executors, and their waiting jobs, through the gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JsonOption
from sluice.cli.tables import print_table

app = typer.Typer(no_args_is_help=True, help="Queues that share the slots for executors, and what jobs wait for.")

_NUMBERS = ("WEIGHT", "GUARANTEED", "MAXIMUM", "SHARE", "SLOTS", "LACKING", "JOBS WAITING", "PREEMPTED")


@app.command("list")
@through_gateway
def list_queues(
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """List the queues that you may use, with what their jobs hold and lack. Viewers see all."""
    document = gateway.get("/v1/queues")
    if as_json:
        print(json.dumps(document))
    elif not document["queues"]:
        print("there are no queues that you may use: see scheduling.queues in the cluster's configuration")
    else:
        print_table(("QUEUE", *_NUMBERS), [_queue_row(each) for each in document["queues"]], right=_NUMBERS)


@app.command(epilog="Example: sluice queues show production")
@through_gateway
def show(
    queue: Annotated[str, typer.Argument(help="Its name, as `sluice queues list` shows it.")],
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Show a queue with its jobs: what each waits for, and when it has its next slot at the latest, if known."""
    document = gateway.get(f"/v1/queues/{quote(queue, safe='')}")
    if as_json:
        print(json.dumps(document))
        return
    print_table(("QUEUE", *_NUMBERS), [_queue_row(document)], right=_NUMBERS)
    if document["jobs"]:
        print()
        print_table(
            ("JOB", "OWNER", "PRIORITY", "SLOTS", "LACKING", "POSITION", "NEXT SLOT", "WAITS FOR"),
            [_job_row(each, time.time()) for each in document["jobs"]],
            right=("PRIORITY", "SLOTS", "LACKING", "POSITION"),
        )


def _queue_row(queue: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (str(queue[key]) for key in ("slots", "lacking", "jobs_waiting", "preempted"))
    shares = (f"{queue[key]:.0%}" for key in ("guaranteed", "maximum", "share"))
    return (queue["name"], f"{queue['weight']:g}", *shares, *numbers)


def _job_row(job: Mapping[str, Any], now: float) -> tuple[str, ...]:
    numbers = (str(job[key]) for key in ("priority", "slots", "lacking"))
    return (job["id"], job["owner"], *numbers, str(job["position"] or ""), _next_slot(job, now), job["waits_for"])


def _next_slot(job: Mapping[str, Any], now: float) -> str:
    if not job["lacking"]:
        return ""
    if job["expected_by"] is None:
        return "unknown"
    return f"in at most {max(0, job['expected_by'] / 1000 - now):.0f} s"
