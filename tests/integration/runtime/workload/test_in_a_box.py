"""The Workload API and token files in a real box with an unmodified SPIFFE client."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.core.clock import utc_now
from sluice.pki.jwt.authority import LocalJwtAuthority
from sluice.pki.jwt.svid import decode_jwks, validate_token
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.jobmanager.errors import TokenRefused
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import IsolationConfig, Sandbox, View
from sluice.runtime.spark.jvm import make_temp_dir, remove_temp_dir
from sluice.runtime.workload.place import TokenFile, WorkloadPlace
from sluice.runtime.workload.server import WorkloadServer
from sluice.runtime.workload.tokens import TokenUnavailable
from tests.hostile import TRUST_DOMAIN, TestPki

JOB = "0123456789abcdef0123456789abcdef"
OWN = SpiffeId.executor(TRUST_DOMAIN, JOB, 3)
OTHER = SpiffeId.driver(TRUST_DOMAIN, "f" * 32)
INSIDE = Path(__file__).with_name("inside.py")
LIFETIME = dt.timedelta(minutes=5)


@dataclass
class JobManager:
    """Stands for the JobManager: issues tokens for the audience ``vault`` only, as the policy would."""

    authority: LocalJwtAuthority
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def token(self, audience: tuple[str, ...]) -> str:
        """Return a token of :data:`OWN`, no matter who asks."""
        self.asked.append(audience)
        if audience != ("vault",):
            raise TokenRefused("the policy gives no token")
        return self.authority.sign(OWN, audience, LIFETIME)

    async def keys(self) -> str:
        """The public keys that verify the tokens."""
        return self.authority.jwks().decode()


@dataclass
class World:
    """The environment of an executor."""

    sandbox: Sandbox
    jobmanager: JobManager
    identity: Path
    place: WorkloadPlace
    work: Path

    def server(self, *files: TokenFile) -> WorkloadServer:
        """The Workload API server of the executor."""
        return WorkloadServer(
            self.place,
            self.identity,
            OWN,
            ask=self.jobmanager.token,
            ask_keys=self.jobmanager.keys,
            files=files,
        )

    async def run(self, server: WorkloadServer, *argv: str) -> dict[str, Any]:
        """Run :mod:`inside` in a box of the job, and return what it prints."""
        self.sandbox.own([self.work], JOB)
        view = View(JOB, (self.place.directory, INSIDE), (self.work,))
        with (self.work.parent / "out").open("w+b") as out, (self.work.parent / "err").open("w+b") as err:
            child = await ChildProcess.start(
                (sys.executable, str(INSIDE), *argv),
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **server.environment},
                cwd=self.work,
                stdout=out,
                stderr=err,
                box=self.sandbox.box(view, self.sandbox.limits()),
            )
            async with asyncio.timeout(120):
                ended = await child.wait()
            out.seek(0)
            err.seek(0)
            assert ended.code == 0, err.read().decode()
            found: dict[str, Any] = json.loads(out.read())
            return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    pki = TestPki(tmp_path)
    authority = LocalJwtAuthority(pki.home.pki, TRUST_DOMAIN, utc_now)
    authority.refresh()
    identity = tmp_path / "identity"
    pki.issuer.issue_to(identity, OWN)
    (tmp_path / "work").mkdir(mode=0o700)
    sandbox = await asyncio.to_thread(Sandbox.prepare, IsolationConfig())
    place = WorkloadPlace(make_temp_dir(), sandbox.uid(JOB))
    yield World(sandbox, JobManager(authority), identity, place, tmp_path / "work")
    remove_temp_dir(place.directory)


@pytest.mark.timeout(200)
async def test_a_process_gets_only_its_own_identity(world: World) -> None:
    foreign = world.jobmanager.authority.sign(OTHER, ["payroll"], LIFETIME)
    server = world.server(TokenFile(audience="vault", name="vault"))
    await server.start()
    try:
        seen = await world.run(server, str(OWN), str(OTHER), foreign)
    finally:
        await server.close()
    regular = seen["regular"]
    assert regular["x509"] == regular["jwt"] == regular["validated"] == seen["again"] == str(OWN)
    assert (regular["svids"], regular["kept"]) == (1, True)
    assert seen["hostile"] == {
        "another audience": "PERMISSION_DENIED",
        "one more audience": "PERMISSION_DENIED",
        "no audience": "INVALID_ARGUMENT",
        "an empty audience": "INVALID_ARGUMENT",
        "a long audience": "PERMISSION_DENIED",
        "another subject": "PERMISSION_DENIED",
        "another domain": "PERMISSION_DENIED",
        "its own subject": "",
        "no header": "INVALID_ARGUMENT",
        "another header": "INVALID_ARGUMENT",
        "a foreign token": "INVALID_ARGUMENT",
        "no header for svids": "INVALID_ARGUMENT",
        "a flood": "PERMISSION_DENIED",
        "after the flood": "",
    }
    assert world.jobmanager.asked.count(("vault",)) == 1, "one token serves all of its questions"
    assert len(world.jobmanager.asked) <= 1 + 2 + 20 + 5, "a flood does not reach the JobManager"
    assert seen["rude"]["changed"] == []
    keys = decode_jwks(world.jobmanager.authority.jwks())
    subject, _ = validate_token(seen["rude"]["token file"], "vault", keys, trust_domain=TRUST_DOMAIN, now=utc_now())
    assert subject == OWN


async def test_a_closed_workload_api_server_accepts_no_connections(world: World) -> None:
    server = world.server()
    await server.start()
    await server.close()
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        await asyncio.open_unix_connection(str(world.place.socket))


async def test_a_process_whose_token_file_is_refused_does_not_start(world: World) -> None:
    with pytest.raises(TokenUnavailable, match="no token for 'payroll': the policy gives no token"):
        await world.server(TokenFile(audience="payroll", name="p")).start()
    assert not world.place.socket.exists()


async def test_another_user_of_the_machine_cannot_use_the_workload_api(world: World) -> None:
    server = world.server(TokenFile(audience="vault", name="vault"))
    await server.start()
    try:
        uid = world.sandbox.uid(JOB)
        modes = [path.stat().st_mode & 0o777 for path in (world.place.directory, world.place.socket)]
        assert modes == ([0o700, 0o600] if uid is None else [0o710, 0o660])
        file = (world.place.tokens / "vault").stat()
        assert (file.st_mode & 0o777, file.st_uid) == (0o600, os.geteuid() if uid is None else uid)
        if uid is not None:  # this test is another user then
            reader, writer = await asyncio.open_unix_connection(str(world.place.socket))
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
    finally:
        await server.close()
