"""The sandboxed JVM that reads event logs, given logs from a hostile job. Real Spark, no cluster."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sluice.runtime.messages import UiPage, UiRequest
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from sluice.runtime.spark.jvm.command import SparkRuntime, find_spark_runtime
from sluice.runtime.taskmanager.ended_uis.ended_ui import EndedUi, UiPlaces

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

JOB = "0123456789abcdef" * 2
BASE = f"/v1/jobs/{JOB}/ui"
SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=alert(1)>"
ENVIRONMENT = (
    "JVM Information",
    "Spark Properties",
    "Hadoop Properties",
    "System Properties",
    "Metrics Properties",
    "Classpath Entries",
)
WAIT_SECONDS = 400.0


def events(*, name: str = "app", more: tuple[str, ...] = ()) -> str:
    """An event log of an application called ``name``."""
    start = {
        "Event": "SparkListenerApplicationStart",
        "App Name": name,
        "App ID": "sluice-1",
        "Timestamp": 1700000000000,
        "User": name,
    }
    job = {
        "Event": "SparkListenerJobStart",
        "Job ID": 0,
        "Submission Time": 1700000000001,
        "Stage Infos": [],
        "Stage IDs": [],
        "Properties": {"spark.job.description": name, "spark.jobGroup.id": name},
    }
    lines = [
        json.dumps({"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"}),
        json.dumps(start),
        json.dumps({"Event": "SparkListenerEnvironmentUpdate", **{kind: {} for kind in ENVIRONMENT}}),
        json.dumps(job),
        *more,
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def spark() -> SparkRuntime:
    return find_spark_runtime()


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox.prepare(IsolationConfig())


Open = Callable[[bytes], Awaitable[EndedUi]]


@pytest.fixture
async def opened(spark: SparkRuntime, sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Open]:
    made = []

    async def begin(log: bytes, within: Sandbox = sandbox) -> EndedUi:
        places = UiPlaces.make(tmp_path / "uis" / JOB)
        places.event_log.write_bytes(log)
        ui = EndedUi(JOB, places, spark=lambda: spark, sandbox=within, memory_mb=384)
        made.append(ui)
        ui.start()
        async with asyncio.timeout(WAIT_SECONDS):
            while not ui.shown and not ui.why:  # noqa: ASYNC110  # another process decides
                await asyncio.sleep(0.1)
        return ui

    yield begin
    for ui in made:
        await ui.end()
        assert not ui.places.directory.exists()
        assert not ui.places.temp.exists()


async def page(ui: EndedUi, path: str, query: str = "") -> UiPage:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await ui.ask(UiRequest(path=path, query=query, base=BASE))
            if found.status not in {503, 504}:  # the first pages load many classes
                return found
            await asyncio.sleep(0.1)


async def test_names_of_a_job_are_escaped_and_unknown_events_are_ignored(opened: Open) -> None:
    strange = (
        '{"Event":"no.such.Class"}',
        '{"Event":"java.io.File","path":"/etc/passwd"}',
        '{"Event":"javax.swing.JEditorPane","page":"http://192.0.2.1/"}',
        json.dumps({"Event": "SparkListenerJobEnd", "Job ID": 0, "Completion Time": 2, "Job Result": {"Result": "x"}}),
    )
    ui = await opened(gzip.compress(events(name=SCRIPT, more=strange[:1]).encode()))
    assert ui.shown, ui.why
    for path in ("/jobs/", "/environment/", "/stages/"):
        found = await page(ui, path)
        assert (found.status, found.media) == (200, "text/html")
        assert b"<script>document.title" not in found.body
        assert b"<img src=x" not in found.body
    assert b"&lt;script&gt;document.title" in (await page(ui, "/jobs/")).body


@pytest.mark.parametrize(
    ("log", "says"),
    [
        pytest.param(b"", "ended", id="nothing"),
        pytest.param(b"\x00" * 5000, "ended", id="no gzip"),
        pytest.param(gzip.compress(b"no event\n"), "ended", id="no event"),
        pytest.param(gzip.compress(b'{"Event":"java.io.File","path":"/etc/passwd"}\n'), "ended", id="foreign class"),
        pytest.param(gzip.compress(b"[" * 200_000 + b"\n"), "ended", id="deep"),
    ],
)
async def test_a_file_that_is_not_an_event_log_is_not_shown(opened: Open, log: bytes, says: str) -> None:
    ui = await opened(log)
    assert not ui.shown
    assert says in ui.why
    assert len(ui.why) <= 600


async def test_a_truncated_event_log_is_shown_up_to_where_it_ends(opened: Open) -> None:
    compressor = zlib.compressobj(2, zlib.DEFLATED, 31)
    log = compressor.compress(events(name="as far as it goes").encode()) + compressor.flush(zlib.Z_SYNC_FLUSH)
    others = "".join(f'{{"Event":"SparkListenerUnpersistRDD","RDD ID":{number}}}\n' for number in range(5000))
    rest = compressor.compress(others.encode()) + compressor.flush()
    ui = await opened(log + rest[: len(rest) // 2])
    assert ui.shown, ui.why
    assert b"as far as it goes" in (await page(ui, "/jobs/")).body


async def test_a_decompression_bomb_only_ends_its_own_jvm(opened: Open) -> None:
    ui = await opened(gzip.compress(b'{"Event":"' + b"x" * (600 << 20)))
    assert not ui.shown
    assert ui.why


async def test_no_ui_is_rendered_without_a_sandbox(opened: Open) -> None:
    begin: Callable[..., Awaitable[EndedUi]] = opened
    ui = await begin(gzip.compress(events().encode()), Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE)))
    assert not ui.shown
    assert "sandbox" in ui.why
