"""``sluice jobs exceptions``: the exceptions of a job, attempt by attempt."""

from __future__ import annotations

import datetime as dt
import json
from typing import Annotated

import typer
from rich.console import Console

from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JobArgument, JsonOption


@through_gateway
def exceptions(
    job_id: JobArgument,
    tracebacks: Annotated[bool, typer.Option("--tracebacks", help="Print the tracebacks too.")] = False,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Show a job's exceptions, the earliest first; * ended an attempt, + the job recovered from it."""
    entries = gateway.get_of_job(job_id, "/exceptions")["exceptions"]
    if as_json:
        print(json.dumps(entries))
        return
    console = Console()
    for entry in entries:
        at = dt.datetime.fromtimestamp(entry["time"] / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        where = ", ".join(
            part
            for part in (
                entry["task"],
                f"executor {entry['executor']}" if entry["executor"] is not None else "",
                f"on {entry['taskmanager']}" if entry["taskmanager"] else "",
            )
            if part
        )
        mark = "*" if entry["ended_attempt"] else "+" if entry.get("recovered") else " "
        line = f"{at} {mark} attempt {entry['attempt']}{f' ({where})' if where else ''}: {entry['error']}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        if entry["root_cause"] not in {"", entry["error"]}:
            console.print(f"    caused by {entry['root_cause']}", highlight=False, markup=False, soft_wrap=True)
        if tracebacks and entry["traceback"]:
            console.print(entry["traceback"], highlight=False, markup=False, soft_wrap=True)
