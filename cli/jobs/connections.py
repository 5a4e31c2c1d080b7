"""``sluice jobs connections``: the connections of a job: inside, as both ends verified them, and to the outside."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JobArgument, JsonOption
from sluice.cli.tables import print_table
from sluice.client import GatewayClient, whole_id
from sluice.core import REPLACEMENT, host_port, printable

COLUMNS = ("CHANNEL", "FROM", "TO", "PROTOCOL", "CIPHER")
JOB_COLUMNS = ("DIRECTION", *COLUMNS, "RESULT")
CHANNELS = ("edge", "rpc", "blob", "rest", "data", "connect")

Row = tuple[str, str, str, str, str]


@through_gateway
def connections(
    job_id: JobArgument,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """The connections of a job.

    Inside the cluster: which identity each end verified, with which TLS version and cipher. Out of the cluster: what
    the job asked for, whether it was allowed, refused or would be refused, and how many bytes it sent and got.
    """

    async def read(client: GatewayClient) -> tuple[str, dict[str, Any], dict[str, Any]]:
        whole = await whole_id(client, job_id)
        job = await client.get(f"/v1/jobs/{whole}")
        return whole, job, await client.get(f"/v1/jobs/{whole}/connections")

    whole, job, answer = gateway.call(read)
    found, outside = answer["connections"], answer.get("egress", [])
    dropped, since = answer.get("egress_dropped", 0), answer.get("egress_since", 0.0)
    if as_json:
        print(json.dumps({"connections": found, "egress": outside, "egress_dropped": dropped, "egress_since": since}))
        return
    rows = [("inside", *row, "") for row in connection_rows(found, whole)]
    print_table(JOB_COLUMNS, [*rows, *map(_outside, outside)])
    if dropped:
        print(f"{dropped} earlier connections out are only in the audit log")
    if job["start_time"] < since * 1000:
        print(f"connections out that ended before {_moment(since)} are only in the audit log: another JobManager led")


def _moment(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _outside(row: dict[str, Any]) -> tuple[str, ...]:
    """Print one connection to the outside, without control characters in text of the job."""
    host = row["host"] or row["address"]
    target = host_port(host, row["port"]) if row["port"] else host
    times = f", {row['count']} times" if row["count"] > 1 else ""
    moved = f", {row['bytes_up']} bytes up, {row['bytes_down']} down" if row["verdict"] != "refused" else ""
    state = "open" if row["open"] else f"{row['duration_ms']} ms"
    result = f"{row['verdict']}{times}{moved}, {state}"
    if row["reason"]:
        result += f" ({row['reason']})"
    cells = ("out", "egress", row["process"], target, row["protocol"], "-", result)
    return tuple(printable(cell, REPLACEMENT) for cell in cells)


async def all_connections(client: GatewayClient, job_id: str) -> list[dict[str, Any]]:
    """The connections of the job, and of the cluster's own processes."""
    found: list[dict[str, Any]] = (await client.get(f"/v1/jobs/{job_id}/connections"))["connections"]
    return [*found, *(await client.get("/v1/connections"))["connections"]]


def connection_rows(found: list[dict[str, Any]], job_id: str, *, below: str = "") -> list[Row]:
    """Each connection once, from the dialing side; without the prefix ``below`` in names, and the job shortened."""
    return sorted({_row(each, below, job_id) for each in found}, key=lambda row: (CHANNELS.index(row[0]), row))


def _row(connection: dict[str, Any], below: str, job_id: str) -> Row:
    ends = [str(connection[end]).removeprefix(below).replace(job_id, f"{job_id[:8]}…") for end in ("local", "peer")]
    source, target = ends if connection["direction"] == "dialed" else reversed(ends)
    return connection["channel"], source, target, connection["protocol"], connection["cipher"]
