"""A trace from the request to the TaskManager, as received by a collector in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from sluice.core.egress_evidence import EgressRow, EgressVerdict
from sluice.core.tracing import (
    TRACING,
    TracingConfig,
    TracingUnavailable,
    checked,
)
from sluice.runtime.jobmanager.egress import EgressLedger
from tests.assertions import AssertingGateway
from tests.integration.runtime.conftest import Cluster, eventually
from tests.otlp import Collector, collecting, stopped

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """A trace collector to which this process exports its traces."""
    async with collecting() as collector:
        yield collector


async def test_one_trace_leads_from_the_request_to_the_taskmanager(collector: Collector, cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    form = aiohttp.FormData()
    form.add_field("request", '{"executors": 1}', content_type="application/json")
    pipeline = f'{{"executors": 1, "end": "when-told", "flag": "{cluster.flag}"}}'
    form.add_field("pipeline", pipeline.encode(), filename="p.json")
    status, document = await cluster.call(
        "POST", "/v1/jobs", data=form, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}
    )
    assert status == 202
    job_id = document["job_id"]
    await cluster.until_running(job_id, 1)
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")
    await stopped()

    async def all_there() -> bool:
        return len([span for span in collector.spans if span.trace_id.hex() == TRACE]) >= 5

    await eventually(all_there, "the spans have arrived")
    mine = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert set(mine) == {"rest submit_job", "dispatcher accept", "job attempt", "launch driver", "launch executor"}
    assert mine["rest submit_job"].parent_span_id.hex() == PARENT
    for name in ("dispatcher accept", "job attempt"):
        assert mine[name].parent_span_id == mine["rest submit_job"].span_id
    for name in ("launch driver", "launch executor"):
        assert mine[name].parent_span_id == mine["job attempt"].span_id
    attributes = {each.key: each.value.string_value for each in mine["job attempt"].attributes}
    assert attributes["job"] == job_id


async def test_a_finished_egress_connection_becomes_a_span_of_its_job_with_its_own_times(collector: Collector) -> None:
    def row(number: int, verdict: EgressVerdict, reason: str = "") -> EgressRow:
        return EgressRow(
            id=f"{number:032x}",
            job_id="j1",
            attempt=1,
            process="driver",
            protocol="tcp",
            host="api.example.com",
            address="",
            port=443,
            verdict=verdict,
            reason=reason,
            opened_at=1_772_366_400.0,
            duration_ms=250,
            bytes_up=7,
        )

    rows = [row(1, EgressVerdict.ALLOWED), row(2, EgressVerdict.REFUSED, "not_allowed")]
    EgressLedger().note(rows, {"j1": f"00-{TRACE}-{PARENT}-01"})
    await stopped()

    async def all_there() -> bool:
        return len(collector.spans) >= 2

    await eventually(all_there, "the spans have arrived")
    allowed, refused = sorted(collector.spans, key=lambda span: span.status.message)
    assert {allowed.name, refused.name} == {"egress connection"}
    assert (allowed.trace_id.hex(), allowed.parent_span_id.hex()) == (TRACE, PARENT)
    assert round((allowed.end_time_unix_nano - allowed.start_time_unix_nano) / 1e6) == 250
    assert allowed.start_time_unix_nano == 1_772_366_400 * 10**9
    assert refused.status.message == "not_allowed"
    attributes = {each.key: each.value.string_value or each.value.int_value for each in allowed.attributes}
    assert (attributes["target"], attributes["verdict"], attributes["bytes_up"]) == (
        "api.example.com:443",
        "allowed",
        7,
    )


async def test_a_request_with_a_malformed_traceparent_starts_a_new_trace(
    collector: Collector, cluster: Cluster
) -> None:
    path = "/v1/overview"
    connector = aiohttp.UnixConnector(str(cluster.home.sockets / "rest.sock"))
    signed = AssertingGateway(cluster.home).headers("GET", path)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://rest{path}", headers=signed | {"traceparent": f"00-{TRACE}-{'0' * 16}-01"}) as answer,
    ):
        assert answer.status == 200
    await stopped()

    async def there() -> bool:
        return bool(collector.spans)

    await eventually(there, "the span has arrived")
    assert all(span.trace_id.hex() != TRACE and not span.parent_span_id for span in collector.spans)


@pytest.mark.parametrize("endpoint", ["http://otel.example.com:4318/v1/traces", "otel:4318", "file:///tmp/x"])
def test_a_remote_tracing_endpoint_without_https_is_refused(endpoint: str) -> None:
    with pytest.raises(TracingUnavailable):
        TRACING.start(TracingConfig(endpoint=endpoint), "x/y")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"00-{TRACE}-{PARENT}",
        f"01-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00-{TRACE}-{PARENT}-01-x",
    ],
)
def test_a_malformed_traceparent_is_ignored(text: str) -> None:
    assert checked(text) == ""
