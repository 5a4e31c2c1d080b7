"""Clients learn of events as they happen: long polling and server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp
import pytest

from sluice.runtime.rest.protocol import streams
from tests.assertions import AssertingGateway
from tests.integration.rest.events import listening
from tests.integration.runtime.conftest import Cluster, eventually


async def test_a_job_and_its_log_are_streamed_to_the_end_without_duplicates(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    async with (
        listening(cluster.home, f"/v1/jobs/{job_id}/events") as job,
        listening(cluster.home, f"/v1/jobs/{job_id}/logs/stream?source=driver.stdout") as log,
    ):
        await cluster.until_running(job_id, 1)
        cluster.flag.touch()
        told, written = await asyncio.gather(job.rest(), log.rest())
    states = [event.data["state"] for event in told if event.name == "job"]
    assert (told[-1].name, states[-1]) == ("end", "FINISHED")
    assert len({event.id for event in told if event.name == "job"}) == len(states)
    whole = (await cluster.get(f"/v1/jobs/{job_id}/logs?source=driver.stdout"))["data"]
    assert "".join(event.data["data"] for event in written if event.name == "log") == whole
    assert written[-1].name == "end"
    last = [event for event in told if event.name == "job"][-1].id
    async with listening(cluster.home, f"/v1/jobs/{job_id}/events", **{"last-event-id": last}) as again:
        assert [event.name for event in await again.rest()] == ["end"]


async def test_the_cluster_stream_sends_the_current_state_and_then_its_changes(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    before = await cluster.submit(executors=1)
    async with listening(cluster.home, "/v1/events") as events:
        assert (await events.until("job")).data["id"] == before
        assert (await events.until("overview")).data["slots_total"] == 2
        after = await cluster.submit(executors=1)
        while (await events.until("job")).data["id"] != after:
            pass
        await cluster.start_taskmanager("tm-2")
        while (await events.until("overview")).data["slots_total"] != 4:
            pass
        cluster.flag.touch()
        while (event := await events.until("job")).data["state"] != "FINISHED":
            pass
        assert event.data["id"] in {before, after}


async def test_a_long_poll_answers_when_something_changes_and_not_before(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    await cluster.until_running(job_id, 1)
    connector = aiohttp.UnixConnector(str(cluster.home.sockets / "rest.sock"))
    signed = AssertingGateway(cluster.home)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(version: str, wait: float, **headers: str) -> tuple[int, str, str]:
            path = f"/v1/jobs/{job_id}?wait={wait}&version={version}"
            async with session.get(f"http://rest{path}", headers=signed.headers("GET", path) | headers) as answer:
                body = await answer.read()
                state = json.loads(body)["state"] if body else ""
                return answer.status, answer.headers["etag"].strip('"'), state

        status, version, state = await ask("", 0)
        assert (status, state) == (200, "RUNNING")
        assert (await ask(version, 0.1))[0] == 304
        assert (await ask("", 0.1, **{"if-none-match": f'"{version}"'}))[0] == 304
        waiting = asyncio.create_task(ask(version, 25))
        await asyncio.sleep(0)
        cluster.flag.touch()
        status, newer, state = await waiting
        assert status == 200
        assert newer != version


async def test_streams_are_limited_for_each_principal(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS_OF_ONE", 1)
    async with listening(cluster.home, "/v1/events", "ada") as events:
        await events.until("overview")
        status, problem = await cluster.call("GET", "/v1/events")
        assert (status, problem["type"]) == (429, "urn:sluice:problem:TooManyStreams")
        async with listening(cluster.home, "/v1/events", "bob") as others:
            await others.until("overview")


async def test_a_stream_whose_client_does_not_read_is_cut_off(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream sends what fits into the sockets, then it ends without the rest."""
    monkeypatch.setattr(streams, "STALL_SECONDS", 0.3)
    job_id = await cluster.submit(executors=0)

    async def log() -> Path | None:
        return next(cluster.driver_directory(job_id).glob("*stdout*"), None)

    whole = 8 << 20
    with (await eventually(log, "there is a log")).open("ab") as file:
        file.write(b"x" * whole)
    path = f"/v1/jobs/{job_id}/logs/stream"
    signed = AssertingGateway(cluster.home).assertion("GET", path)
    reader, writer = await asyncio.open_unix_connection(str(cluster.home.sockets / "rest.sock"), limit=1024)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: rest\r\nx-sluice-assertion: {signed}\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    async def gone() -> bool:
        return not _open_streams()

    assert _open_streams()
    await eventually(gone, "the stream has ended")
    received = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            received += len(data)
    assert received < whole
    writer.close()


def _open_streams() -> list[asyncio.Task[object]]:
    """The tasks that serve streams now."""
    return [task for task in asyncio.all_tasks() if "Streams._serve" in repr(task.get_coro())]
