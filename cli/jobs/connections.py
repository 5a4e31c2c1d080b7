"""``sluice jobs connections``: the connections of a job, as both ends verified them."""

from __future__ import annotations

import json
from typing import Any

from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JobArgument, JsonOption
from sluice.cli.tables import print_table
from sluice.client import GatewayClient, whole_id

COLUMNS = ("CHANNEL", "FROM", "TO", "PROTOCOL", "CIPHER")
CHANNELS = ("edge", "rpc", "blob", "rest", "data", "connect")

Row = tuple[str, str, str, str, str]


@through_gateway
def connections(
    job_id: JobArgument,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """The mutual TLS connections of a job: which identity each end verified, with which version and cipher."""

    async def read(client: GatewayClient) -> tuple[str, list[dict[str, Any]]]:
        whole = await whole_id(client, job_id)
        return whole, (await client.get(f"/v1/jobs/{whole}/connections"))["connections"]

    whole, found = gateway.call(read)
    if as_json:
        print(json.dumps({"connections": found}))
        return
    print_table(COLUMNS, connection_rows(found, whole))


async def all_connections(client: GatewayClient, job_id: str) -> list[dict[str, Any]]:
    """Those of the job, and those of the cluster's own processes."""
    found: list[dict[str, Any]] = (await client.get(f"/v1/jobs/{job_id}/connections"))["connections"]
    return [*found, *(await client.get("/v1/connections"))["connections"]]


def connection_rows(found: list[dict[str, Any]], job_id: str, *, below: str = "") -> list[Row]:
    """Each connection once, from the side that dialed; ``below`` (a prefix) is left out of names, the job shortened."""
    return sorted({_row(each, below, job_id) for each in found}, key=lambda row: (CHANNELS.index(row[0]), row))


def _row(connection: dict[str, Any], below: str, job_id: str) -> Row:
    ends = [str(connection[end]).removeprefix(below).replace(job_id, f"{job_id[:8]}…") for end in ("local", "peer")]
    source, target = ends if connection["direction"] == "dialed" else reversed(ends)
    return connection["channel"], source, target, connection["protocol"], connection["cipher"]
