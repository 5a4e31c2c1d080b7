"""Metrics and logs of processes, through REST."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.assertions import AssertingGateway
from tests.integration.runtime.conftest import Cluster, eventually


async def scrape(cluster: Cluster, path: str) -> dict[str, dict[str, list[float]]]:
    """Return the values of each metric by process."""
    connector = aiohttp.UnixConnector(str(cluster.home.sockets / "rest.sock"))
    signed = AssertingGateway(cluster.home).headers("GET", path, "eve", "viewer")
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://rest{path}", headers=signed) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = await answer.text()
    found: dict[str, dict[str, list[float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {}).setdefault(sample.labels["process"], []).append(sample.value)
    return found


async def test_metrics_of_all_processes_are_served_by_one_endpoint(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    await cluster.until_running(job_id, 1)
    found = await scrape(cluster, "/v1/metrics")
    assert found["sluice_taskmanagers"] == {"jobmanager/jm-1": [1]}
    assert found["sluice_jobs"] == {"jobmanager/jm-1": [1]}
    assert set(found["sluice_rpc_messages_total"]) == {"jobmanager/jm-1", "taskmanager/tm-1"}
    assert min(found["sluice_identity_not_after_seconds"]["taskmanager/tm-1"]) > 0
    one = await scrape(cluster, "/v1/taskmanagers/tm-1/metrics")
    assert set(one["process_start_time_seconds"]) == {"taskmanager/tm-1"}


async def test_a_taskmanager_is_shown_with_its_slots_and_its_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await cluster.start_taskmanager("tm-1")
    assert (await cluster.get("/v1/taskmanagers/tm-1"))["slots_total"] == 2

    async def logged() -> bool:
        document = await cluster.get("/v1/taskmanagers/tm-1/logs")
        assert document["next_offset"] >= len(document["data"].encode())
        return bool(document["data"])

    job_id = await cluster.submit(executors=1)
    await cluster.until_running(job_id, 1)
    await eventually(logged, "the TaskManager has logged something")


async def test_an_unknown_taskmanager_is_not_found(cluster: Cluster) -> None:
    for below in ("", "/logs", "/metrics"):
        status, problem = await cluster.call("GET", f"/v1/taskmanagers/tm-9{below}")
        assert (status, problem["type"]) == (404, "urn:sluice:problem:TaskManagerNotFound")
