"""Lists of jobs as tables, and ``sluice jobs history``."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.jobs.state_option import wanted_states
from sluice.cli.options import JsonOption
from sluice.cli.tables import print_table
from sluice.client import HISTORY, latest_jobs


def print_jobs(jobs: Iterable[Mapping[str, Any]]) -> None:
    """One line for each job."""
    rows = []
    for job in jobs:
        started = dt.datetime.fromtimestamp(job["start_time"] / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        seconds = f"{job['duration_ms'] / 1000:.1f}"
        rows.append((job["id"], job["name"], job["owner"], job["state"], started, seconds))
    print_table(("JOB", "NAME", "OWNER", "STATE", "STARTED", "SECONDS"), rows, right=("SECONDS",))


@through_gateway
def history(
    state: Annotated[
        list[str] | None, typer.Option(help="Only jobs that ended in this state, such as FAILED; repeatable.")
    ] = None,
    owner: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=20_000, help="Most jobs to list, the latest ones.")] = 100,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Ended jobs that are kept, also those that `sluice jobs list` no longer has; those that ended last first.

    `show`, `logs`, `exceptions`, `connections` and `receipt` work for all of them. `[history]` in sluice.toml says how
    long jobs are kept.
    """
    states = wanted_states(state or [])
    jobs = gateway.call(lambda client: latest_jobs(client, states, owner, limit, HISTORY))
    if as_json:
        print(json.dumps({"jobs": jobs}))
    else:
        print_jobs(jobs)
