"""Killable JobManager processes, in-process TaskManagers, and jobs that notice if they run twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from sluice.core.files import make_private_directory, write_public
from sluice.core.home import Home
from sluice.pki.assertions.keys import assertion_keys_file
from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.processes.taskmanager import taskmanager
from sluice.runtime.taskmanager import AGENT
from tests.assertions import AssertingGateway
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.runtime.conftest import FAKE_AGENT, FakeLauncher
from tests.system.ha.jobmanager_process import Death, Settings

DEADLINE_SECONDS = 60.0
SCRIPT = Path(__file__).with_name("jobmanager_process.py")
PASSED = ("PATH", "HOME", "JAVA_HOME", "XDG_CACHE_HOME", "TMPDIR")
ROOT = Path(__file__).resolve().parents[3]


async def eventually(check: Callable[[], Awaitable[Any]], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """Poll ``check`` until it returns something true.

    Connection errors and timeouts count as no answer.
    """
    deadline, last = time.monotonic() + seconds, None
    while True:
        try:
            answer = await check()
            if answer:
                return answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            last = error
        assert time.monotonic() < deadline, f"waited in vain until {what}: {last}"
        await asyncio.sleep(0.05)


@dataclass
class Master:
    """A JobManager's process and its home."""

    name: str
    home: Home
    config: RuntimeConfig
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the process a signal; after SIGKILL, wait until it has ended."""
        assert self.process is not None
        os.kill(self.process.pid, number)
        if number is signal.SIGKILL:
            self.process.wait()


@dataclass
class World:
    """What a test works with; :meth:`close` ends everything that was started."""

    pki: TestPki
    tmp: Path
    config: RuntimeConfig
    spark: bool = False
    masters: dict[str, Master] = field(default_factory=dict)
    ahead: dict[str, float] = field(default_factory=dict)
    """By how many seconds the clocks of JobManagers are; the gateway's is right for whichever is asked."""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def shared(self) -> Path:
        """The extra directory that jobs may write to; see ``[isolation] writable`` in the fixtures."""
        return self.tmp / "jobs"

    @property
    def alone(self) -> Path:
        """The directory in which jobs record that they run."""
        place = self.tmp / "alone"
        place.mkdir(exist_ok=True)
        return place

    @property
    def flag(self) -> Path:
        """The file that ends jobs."""
        return self.tmp / "finish"

    def declare(self, name: str, home: Home, *, rpc_port: int, rest_port: int) -> None:
        """Declare a JobManager on a machine of its own, without starting it."""
        settings = msgspec.structs.replace(
            self.config.jobmanager, rpc_port=rpc_port, rest_host="127.0.0.1", rest_port=rest_port
        )
        self.masters[name] = Master(name, home, msgspec.structs.replace(self.config, jobmanager=settings))

    @property
    def rpc_addresses(self) -> tuple[tuple[str, int], ...]:
        """Where the declared JobManagers listen."""
        return tuple(("127.0.0.1", each.config.jobmanager.rpc_port) for each in self.masters.values())

    def start(
        self,
        name: str,
        *,
        home: Home | None = None,
        die: Death | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Master:
        """Start or restart a JobManager; ``environment`` adds variables to those that are passed on."""
        known = self.masters.get(name) or Master(name, home or self.pki.home, self.config)
        where = known.home
        directory = where.identity(Role.JOBMANAGER, name)
        if not directory.exists():
            spiffe_id = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, name)
            self.pki.issuer.issue_to(directory, spiffe_id, dns=["localhost"], ips=["127.0.0.1"])
        settings = Settings(
            home=str(where.root),
            authorities=str(self.pki.home.root),
            name=name,
            config=known.config,
            pki=self.pki.config,
            die=die,
        )
        file = self.tmp / f"{name}.json"
        file.write_bytes(msgspec.json.encode(settings))
        log = self.tmp / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, SCRIPT, file],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**{key: os.environ[key] for key in PASSED if key in os.environ}, "PYTHONPATH": str(ROOT)}
                | dict(environment or {}),
            )
        master = self.masters[name] = Master(name, where, known.config, process, log)
        return master

    async def start_taskmanager(self, name: str, *, home: Home | None = None, **options: Any) -> None:
        """Start a TaskManager in this process; it finds the leader by itself."""
        where = home or self.pki.home
        self.pki.issuer.issue_to(
            where.identity(Role.TASKMANAGER, name), SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name)
        )
        await self.stack.enter_async_context(
            taskmanager(
                where,
                self.config,
                name,
                launcher=None if self.spark else FakeLauncher(),
                argv=AGENT if self.spark else FAKE_AGENT,
                **options,
            )
        )

    def gateway(self, ahead: float = 0) -> AssertingGateway:
        """This cluster's gateway, its clock ``ahead`` seconds fast; all homes know its public keys."""
        gateway = AssertingGateway(self.pki.home, lambda: time.time() + ahead)
        keys = assertion_keys_file(self.pki.home).read_bytes()
        for master in self.masters.values():
            file = assertion_keys_file(master.home)
            make_private_directory(file.parent)
            if not file.exists() or file.read_bytes() != keys:
                write_public(file, keys)
        return gateway

    async def call(self, where: Home | str, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Make a REST call.

        ``where`` is a home, for its Unix socket, or the name of a JobManager, which is called over mutual TLS as
        the gateway.
        """
        connector: aiohttp.BaseConnector
        if isinstance(where, Home):
            connector, url = aiohttp.UnixConnector(str(where.sockets / "rest.sock")), "http://rest"
        else:
            gateway = self.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy"))
            policy = server_policy(Channel.REST, TRUST_DOMAIN, role=Role.JOBMANAGER, name=where)
            connector = aiohttp.TCPConnector(ssl=gateway.client_context(policy, alpn=("http/1.1",)))
            url = f"https://127.0.0.1:{self.masters[where].config.jobmanager.rest_port}"
        ahead = 0.0 if isinstance(where, Home) else self.ahead.get(where, 0.0)
        options["headers"] = self.gateway(ahead).headers(method, path)
        timeout = aiohttp.ClientTimeout(total=15)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, f"{url}{path}", **options) as response,
        ):
            return response.status, json.loads(await response.read())

    async def jobs(self, home: Home | str | None = None) -> list[Any]:
        """All jobs."""
        status, document = await self.call(home or self.pki.home, "GET", "/v1/jobs")
        assert status == 200, document
        return list(document["jobs"])

    async def job(self, job_id: str, home: Home | str | None = None) -> Any:
        """One job."""
        status, document = await self.call(home or self.pki.home, "GET", f"/v1/jobs/{job_id}")
        return document if status == 200 else None

    async def submit(
        self,
        *,
        executors: int = 1,
        home: Home | str | None = None,
        restart: dict[str, object] | None = None,
        **script: object,
    ) -> str:
        """Submit a job and return its id; it waits for the flag unless ``script`` says otherwise."""
        pipeline = {
            "executors": executors,
            "end": "when-told",
            "flag": str(self.flag),
            "alone": str(self.alone),
            **script,
        }
        request = {"executors": max(1, executors), **({"restart": restart} if restart else {})}
        form = aiohttp.FormData()
        form.add_field("request", json.dumps(request), content_type="application/json")
        form.add_field("pipeline", json.dumps(pipeline).encode(), filename="pipeline.json")
        status, document = await self.call(home or self.pki.home, "POST", "/v1/jobs", data=form)
        assert status == 202, document
        return str(document["job_id"])

    async def until(self, job_id: str, state: str, *, attempt: int = 0, home: Home | str | None = None) -> Any:
        """Wait until the job is in ``state``."""

        async def reached() -> Any:
            job = await self.job(job_id, home)
            if job is None:
                return None
            assert job["state"] == state or job["end_time"] is None, job
            return job if job["state"] == state and job["attempt"] >= attempt else None

        return await eventually(reached, f"job is {state}")

    async def until_up(self, home: Home | str | None = None, *, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until a leader answers."""

        async def answers() -> bool:
            return (await self.call(home or self.pki.home, "GET", "/v1/overview"))[0] == 200

        await eventually(answers, "a leader answers", seconds)

    def runs(self) -> list[int]:
        """The attempts that have run; fails when two ran at the same time."""
        assert not (self.alone / "twice").exists(), "the job ran twice at the same time"
        file = self.alone / "runs"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    async def close(self) -> None:
        """End everything."""
        for master in self.masters.values():
            if master.process is not None:
                master.process.kill()
                master.process.wait()
        await self.stack.aclose()
