"""The insider audit's own RPC client.

Its calls get through where they are allowed, so its refusals are real refusals.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import msgpack

from sluice.audit.insider.payload.attempt import Outcome, Tried
from sluice.audit.insider.payload.identity import connected
from sluice.audit.insider.payload.rows import forging
from sluice.audit.insider.payload.wire import PATH, PROTOCOL_VERSION, Refused, RpcConnection, pack, unpack
from sluice.audit.insider.payload.world import Target, World as Known
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.rpc import envelope
from sluice.runtime.rpc.transport import grpc_stream
from sluice.runtime.shuffle.data_plane import frames
from tests.hostile import TRUST_DOMAIN
from tests.integration.rpc.world import JOB, OTHER_JOB, Echo, World, jobmanager


async def _listener(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: str) -> Known:
    """Start a JobManager that serves :class:`Echo`, and return what code of ``job`` knows of it.

    The current directory becomes the job's working directory, with the job's identity next to it.
    """
    service = world.service(jobmanager())
    await service.start(Echo())
    host, port = await service.listen("127.0.0.1", 0)
    directory = world.pki.directory(SpiffeId.driver(TRUST_DOMAIN, job))
    (tmp_path / "attempt" / "work").mkdir(parents=True)
    (tmp_path / "attempt" / "identity").symlink_to(directory)
    monkeypatch.chdir(tmp_path / "attempt" / "work")
    return Known(targets=(Target("port", f"{host}:{port}", "rpc"),), victim=JOB, own=job)


def _call(known: Known, method: str, *arguments: object) -> object:
    with connected(known, known.targets[0].address, "h2") as secure:
        return RpcConnection(secure).call("echo", method, list(arguments))


async def test_a_call_that_is_allowed_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = await _listener(world, monkeypatch, tmp_path, JOB)
    sample = {"name": "ä", "numbers": [1, -2, 70_000]}
    assert await asyncio.to_thread(_call, known, "echo", sample) == sample
    assert JOB in str(await asyncio.to_thread(_call, known, "for_own_driver"))


@pytest.mark.parametrize(
    ("method", "arguments"), [("for_own_driver", []), ("add", [1, 2]), ("with_jobmanager_api", []), ("nothing", [])]
)
async def test_a_call_that_is_not_allowed_is_refused_by_name(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, arguments: list[int]
) -> None:
    known = await _listener(world, monkeypatch, tmp_path, OTHER_JOB)
    with pytest.raises(Refused, match=r"CallNotPermitted|MethodNotFound"):
        await asyncio.to_thread(_call, known, method, *arguments)


async def test_an_audit_row_distinguishes_reached_refused_and_untried_calls(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = await _listener(world, monkeypatch, tmp_path, JOB)

    async def tried(endpoint: str, method: str, *arguments: object) -> Tried:
        return await asyncio.to_thread(forging._calling("rpc", endpoint, method, list(arguments)), known)

    assert (await tried("echo", "for_own_driver")).outcome is Outcome.REACHED
    assert (await tried("echo", "echo", 7)).outcome is Outcome.REACHED, "it was let through to its arguments"
    assert (await tried("echo", "add", 1)).outcome is Outcome.REFUSED
    assert (await tried("jobmaster/nobody", "cancel")).outcome is Outcome.UNTRIED


async def test_a_call_without_a_listener_or_an_identity_counts_as_untried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run = forging._calling("rpc", "dispatcher", "jobs", [])
    assert run(Known()).outcome is Outcome.UNTRIED
    assert "no identity" in run(Known(targets=(Target("port", "127.0.0.1:1", "rpc"),))).seen


def test_the_audits_client_uses_the_protocol_version_of_the_cluster() -> None:
    assert PROTOCOL_VERSION == envelope.PROTOCOL_VERSION
    assert PATH == grpc_stream.PATH
    assert forging._HEADER.format == frames.HEADER.format
    assert (forging._MAGIC, forging._VERSION) == (frames.MAGIC, frames.VERSION)
    assert (forging._HELLO, forging._HELLO_OK) == (frames.FrameType.HELLO, frames.FrameType.HELLO_OK)


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, 1 << 40, "ä", b"\0" * 300, [1, [2]], {"a": {"b": []}}, -(1 << 40)]
)
def test_the_audits_msgpack_is_compatible_with_the_library(value: object) -> None:
    assert msgpack.decode(pack(value)) == value
    for data in (pack(value), msgpack.encode(value)):
        assert unpack(data) == (value, len(data))
