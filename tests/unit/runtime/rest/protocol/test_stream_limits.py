"""Stream limits are checked and taken in one step: a burst gets exactly as many streams as allowed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sluice.pki.assertions.open_streams import Holders, OpenStreams
from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import Assertion
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.config import ConnectConfig
from sluice.runtime.jobmanager.dispatcher.connect_sessions import ConnectSessions
from sluice.runtime.jobmanager.errors import TooManyJobs
from sluice.runtime.jobmanager.gateways import DispatcherGateway
from sluice.runtime.messages import Admission, JobKind, JobState, JobSubmission
from sluice.runtime.rest.protocol import streams
from sluice.runtime.rest.protocol.assertion import ASSERTED
from sluice.runtime.rest.protocol.problems import TooManyStreams
from sluice.runtime.rest.protocol.route import Call, NoQuery
from sluice.runtime.rest.protocol.streams import EventStream, Streams
from tests.waiting import until


async def everybody_stays(everybody: Holders) -> Holders:
    return everybody


ADMISSION = Admission(method="token", credential_kind="token", credential="id-1", operation="connect.use")


def principal_of(name: str) -> Principal:
    return Principal(name, (), "token", Credential("token", "id-1"))


def call_of(name: str) -> Call[NoQuery]:
    request = make_mocked_request("GET", "/v1/events")
    request[ASSERTED] = Assertion(principal_of(name), "")
    return Call(request, {}, NoQuery())


async def burst(opened: Streams, names: list[str], end: asyncio.Event) -> list[Any]:
    """Request all streams before any is served, and return the outcomes."""

    async def produce(_: EventStream) -> None:
        await end.wait()

    asked = [asyncio.create_task(opened.serve(call_of(name), produce)) for name in names]
    await until(lambda: sum(each.done() for each in asked) + len(opened.open) == len(asked))
    end.set()
    return await asyncio.gather(*asked, return_exceptions=True)


async def test_a_burst_of_streams_is_admitted_up_to_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS_OF_ONE", 3)
    monkeypatch.setattr(streams, "MAX_STREAMS", 5)
    opened = Streams(OpenStreams(everybody_stays))
    for _ in range(2):  # their places are given back
        found = await burst(opened, [*["ada"] * 10, *["bob"] * 10], asyncio.Event())
        for name, answers, most in (("ada", found[:10], 3), ("bob", found[10:], 2)):
            assert sum(isinstance(each, web.StreamResponse) for each in answers) == most, name
            assert sum(isinstance(each, TooManyStreams) for each in answers) == 10 - most, name
        assert len(opened.open) == 0


async def test_a_cancelled_stream_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS_OF_ONE", 1)
    opened = Streams(OpenStreams(everybody_stays))

    async def produce(_: EventStream) -> None:
        await asyncio.Event().wait()

    asked = asyncio.create_task(opened.serve(call_of("ada"), produce))
    await until(lambda: len(opened.open) == 1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert isinstance((await burst(opened, ["ada"], asyncio.Event()))[0], web.StreamResponse)


async def test_concurrently_started_connect_sessions_do_not_exceed_the_limit(tmp_path: Path) -> None:
    started: list[str] = []

    class Dispatcher:
        async def jobs(self) -> tuple[SimpleNamespace, ...]:
            now = [
                SimpleNamespace(owner=owner, id=owner, kind=JobKind.CONNECT, state=JobState.RUNNING)
                for owner in started
            ]
            await asyncio.sleep(0)
            return tuple(now)

        async def submit_job(self, _: str, submission: JobSubmission) -> None:
            await asyncio.sleep(0)
            started.append(submission.owner)

        async def job(self, job_id: str) -> SimpleNamespace:
            return SimpleNamespace(
                id=job_id, owner=job_id, state=JobState.CREATED, attempt=1, pending_reason="", kind=JobKind.CONNECT
            )

    sessions = ConnectSessions(
        cast("DispatcherGateway", Dispatcher()),
        BlobStore(tmp_path / "blobs", 1 << 20),
        ConnectConfig(max_sessions=2),
    )
    found = await asyncio.gather(
        *(sessions.ensure(principal_of(f"user-{n}"), ADMISSION) for n in range(6)), return_exceptions=True
    )
    assert len(started) == sum(not isinstance(each, TooManyJobs) for each in found) <= 2
    assert started, "one of them is always first"
