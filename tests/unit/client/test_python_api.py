"""``import sluice``: the Python API against a gateway with scripted answers."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import sluice
from sluice.client.background_loop import BackgroundLoop
from sluice.client.spark_channel import GatewayChannelBuilder
from sluice.core.errors import SluiceError
from tests.hostile import TestPki
from tests.waiting import wait_until

TOKEN = "slc_secret"  # noqa: S105  made up
JOB = "a" * 32


def job(state: str, *, job_id: str = JOB, **more: object) -> dict[str, object]:
    ended = None if state == "RUNNING" else 2000
    return {"id": job_id, "name": "p.py", "owner": "ada", "state": state, "start_time": 1000, "end_time": ended} | more


@dataclass
class ScriptedGateway:
    """Answers each ``METHOD path`` with its next document and repeats the last one for ever.

    An int is a status without a document.
    """

    answers: dict[str, list[Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        what = f"{request.method} {request.path}"
        self.asked.append(what)
        self.bodies.append(await request.read())
        self.tokens.add(request.headers["authorization"])
        script = self.answers.get(what, [404])
        answer = script.pop(0) if len(script) > 1 else script[0]
        return (
            web.json_response({"title": "no"}, status=answer) if isinstance(answer, int) else web.json_response(answer)
        )


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def serve(pki: TestPki) -> Iterator[Callable[[Any], int]]:
    """Start TLS listeners with the edge certificate; each call returns the port."""
    directory, loop = pki.edge_server(), BackgroundLoop()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    opened: list[asyncio.Server] = []

    async def listen(make: Callable[[], Any]) -> int:
        opened.append(await asyncio.get_running_loop().create_server(make(), "127.0.0.1", 0, ssl=context))
        return int(opened[-1].sockets[0].getsockname()[1])

    async def stop() -> None:
        for each in opened:
            each.close()

    yield lambda make: loop.run(listen(make))
    loop.run(stop())
    loop.close()


@pytest.fixture
def settings(pki: TestPki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    for variable in ("SLUICE_TOKEN", "SLUICE_SERVER", "SLUICE_CA", "SLUICE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    return {"ca": pki.home.pki / "authorities" / "edge" / "cert.pem", "token_file": tmp_path / "token"}


@pytest.fixture
def gateway() -> ScriptedGateway:
    return ScriptedGateway()


@pytest.fixture
def client(gateway: ScriptedGateway, serve: Callable[[Any], int], settings: dict[str, Path]) -> Iterator[sluice.Client]:
    port = serve(lambda: web.Server(gateway.handle, access_log=None))
    with sluice.Client(f"https://localhost:{port}", **settings) as opened:
        yield opened


def test_importing_the_package_loads_neither_spark_nor_an_http_client() -> None:
    code = """if True:
        import sys, sluice
        dir(sluice)
        heavy = [name for name in ("aiohttp", "cryptography", "grpc", "msgspec", "pyspark") if name in sys.modules]
        assert not heavy, heavy
        sluice.Client
        assert "pyspark" not in sys.modules and "grpc" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_exported_name_exists_and_errors_have_their_base_classes() -> None:
    assert set(sluice.__all__) <= set(dir(sluice))
    assert all(getattr(sluice, name) for name in sluice.__all__)
    assert issubclass(sluice.AwayError, sluice.UnreachableError)
    for error in (sluice.UsageError, sluice.UnreachableError, sluice.RefusedError, sluice.JobFailed):
        assert issubclass(error, sluice.ClientError)
    assert issubclass(sluice.ClientError, SluiceError)


def test_a_pipeline_is_submitted_with_its_files_and_awaited(
    client: sluice.Client, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text("print()")
    (tmp_path / "m.py").write_text("ANSWER = 42")
    gateway.answers = {
        "POST /v1/jobs": [{"job_id": JOB}],
        f"GET /v1/jobs/{JOB}": [job("RUNNING"), job("FINISHED")],
        "POST /auth/exchange": [404],
    }
    submitted = client.submit(
        tmp_path / "p.py", ["--fast"], executors=2, executor_memory="2g", py_files=[tmp_path / "m.py"]
    )
    assert repr(submitted) == f"Job({JOB!r})"
    body = gateway.bodies[0].decode()
    for part in ('"args": ["--fast"]', '"executors": 2', '"executor_memory_mb": 2048', "ANSWER = 42", 'name="py_file"'):
        assert part in body
    status = submitted.wait(timeout=20)
    assert (status.state, status.ended, status.ended_at is not None) == ("FINISHED", True, True)
    assert gateway.tokens == {f"Bearer {TOKEN}"}


def test_waiting_for_a_failed_job_raises_unless_check_is_false(client: sluice.Client, gateway: ScriptedGateway) -> None:
    gateway.answers = {f"GET /v1/jobs/{JOB}": [job("FAILED", failure={"error": "it broke", "traceback": ""})]}
    with pytest.raises(sluice.JobFailed, match="is FAILED: it broke") as failed:
        client.job(JOB).wait()
    assert (failed.value.job_id, failed.value.state, failed.value.error) == (JOB, "FAILED", "it broke")
    assert client.job(JOB).wait(check=False).error == "it broke"


def test_waiting_times_out_without_canceling_the_job(client: sluice.Client, gateway: ScriptedGateway) -> None:
    gateway.answers = {f"GET /v1/jobs/{JOB}": [job("RUNNING")]}
    with pytest.raises(TimeoutError, match="has not ended within"):
        client.job(JOB).wait(timeout=0.05)
    assert not any(each.startswith("PATCH") for each in gateway.asked)


def test_jobs_are_listed_found_and_cancelled(client: sluice.Client, gateway: ScriptedGateway) -> None:
    other = "b" * 32
    gateway.answers = {
        "GET /v1/jobs": [{"jobs": [job("RUNNING"), job("FAILED", job_id=other)], "next": None}],
        f"PATCH /v1/jobs/{JOB}": [{}],
    }
    assert [each.id for each in client.jobs(["FAILED"])] == [other]
    assert [each.id for each in client.jobs()] == [JOB, other]
    found = client.job("aa")
    found.cancel()
    assert f"PATCH /v1/jobs/{JOB}" in gateway.asked
    with pytest.raises(sluice.RefusedError, match="there is no job"):
        client.job("cc")


def test_logs_come_in_pieces(client: sluice.Client, gateway: ScriptedGateway) -> None:
    gateway.answers = {
        f"GET /v1/jobs/{JOB}/logs": [
            {"data": "one ", "next_offset": 4, "end": False},
            {"data": "two", "next_offset": 7, "end": True},
        ]
    }
    assert list(client.job(JOB).logs("driver.stdout")) == ["one ", "two"]


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, sluice.UnreachableError), (403, sluice.RefusedError), (404, sluice.RefusedError), (503, sluice.AwayError)],
)
def test_an_error_status_raises_its_exception(
    client: sluice.Client, gateway: ScriptedGateway, status: int, error: type[Exception]
) -> None:
    gateway.answers = {f"GET /v1/jobs/{JOB}": [status]}
    with pytest.raises(error):
        client.job(JOB).status()


def test_the_api_works_inside_a_running_event_loop(client: sluice.Client, gateway: ScriptedGateway) -> None:
    gateway.answers = {f"GET /v1/jobs/{JOB}": [job("RUNNING")]}

    async def cell() -> str:
        return client.job(JOB).status().state

    assert asyncio.run(cell()) == "RUNNING"


def test_a_closed_client_refuses_calls(client: sluice.Client) -> None:
    client.close()
    client.close()
    with pytest.raises(sluice.ClientError, match="the client is closed"):
        client.jobs()


def test_a_client_without_a_credential_or_cluster_is_refused(settings: dict[str, Path]) -> None:
    with pytest.raises(sluice.UsageError, match="no API token"):
        sluice.Client("https://localhost:1", ca=settings["ca"])
    with pytest.raises(sluice.UnreachableError, match="no cluster is running"):
        sluice.Client(home="nowhere")


def everything_said(error: BaseException | None) -> str:
    """Return all text that an error, its causes and contexts show, also to a logger that prints ``repr``."""
    said = ""
    while error is not None:
        said += repr(error) + str(error) + "".join(traceback.format_exception(error))
        error = error.__cause__
    return said


async def answer_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 nonsense\r\n\r\n")
    writer.close()


def raw(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]) -> Any:
    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), handle)

    return protocol


def test_the_token_is_not_in_any_repr_or_exception(serve: Callable[[Any], int], settings: dict[str, Path]) -> None:
    with sluice.Client(f"https://localhost:{serve(lambda: raw(answer_garbage))}", **settings) as client:
        assert TOKEN not in repr(client)
        with pytest.raises(sluice.AwayError) as failed:
            client.jobs()
    assert TOKEN not in everything_said(failed.value)
    channel = GatewayChannelBuilder("sc://localhost:1/;use_ssl=true", TOKEN, None)
    assert channel.token == TOKEN
    assert TOKEN not in repr(channel)
    assert TOKEN not in channel.url.geturl()
    assert not any(TOKEN in value for _, value in channel.metadata())


def test_closing_a_client_ends_the_wait_of_another_thread(client: sluice.Client, gateway: ScriptedGateway) -> None:
    gateway.answers = {f"GET /v1/jobs/{JOB}": [job("RUNNING")]}
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            client.job(JOB).wait()
        except BaseException as error:  # noqa: BLE001  whatever ends the wait
            failed.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    wait_until(lambda: gateway.asked, "the other thread waits")
    client.close()
    waiting.join(timeout=30)
    assert [type(error) for error in failed] == [sluice.ClientError]


def test_a_call_after_the_loop_was_closed_is_cancelled_and_does_not_wait() -> None:
    loop = BackgroundLoop()
    loop.close()
    loop.close()

    async def answer() -> int:
        return 1

    with pytest.raises(CancelledError):
        loop.run(answer())
