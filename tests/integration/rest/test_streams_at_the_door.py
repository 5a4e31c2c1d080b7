"""Streams of events through Envoy: they outlive its time-outs, and end within a second of a revocation."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gateway.config import GatewayConfig
from gateway.principal import AccessRole
from gateway.process import route_file, run_auth, run_envoy
from gateway.revocations import Revocations
from gateway.standing import standing_in
from gateway.tokens import TokenStore, create_token
from pki.edge_client import edge_client_context
from pki.files import write_secret
from pki.identity import Role, SpiffeId
from pki.issuer import LocalIssuer
from runtime.jobmanager.process import jobmanager
from runtime.rest.routes import published_routes
from tests.hostile import TRUST_DOMAIN
from tests.integration.rest.events import Events
from tests.integration.runtime.conftest import JOBMANAGER, Cluster, eventually, fake_driver_argv

REQUEST_TIMEOUT = 1.0


@dataclass
class Door:
    """A gateway in front of the cluster's REST."""

    cluster: Cluster
    port: int
    tls: ssl.SSLContext

    def token(self, name: str) -> str:
        """A new one of a viewer."""
        return create_token(self.cluster.home, name=name, role=AccessRole.VIEWER, lifetime=dt.timedelta(hours=1))

    @contextlib.asynccontextmanager
    async def listening(self, path: str, token: str) -> AsyncIterator[Events]:
        """A stream through the door."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"https://localhost:{self.port}{path}", headers={"authorization": f"Bearer {token}"}, ssl=self.tls
            ) as response,
        ):
            assert response.status == 200, await response.text()
            yield Events(response)


@pytest.fixture
async def door(cluster: Cluster) -> AsyncIterator[Door]:
    """Envoy and the auth service in this process; a request may take a second."""
    home = cluster.home
    await cluster.master.aclose()  # again, with who says whose streams may stay
    cluster.address = await cluster.master.enter_async_context(
        jobmanager(
            home,
            cluster.config,
            cluster.pki.config,
            JOBMANAGER,
            argv=fake_driver_argv,
            issuer=LocalIssuer(home, cluster.pki.config),
            standing=standing_in(home),
        )
    )
    cluster.pki.issuer.issue_edge_server(
        home.identity(Role.GATEWAY, "edge"),
        SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy"),
        dns=["localhost"],
        ips=["127.0.0.1"],
    )
    write_secret(route_file(home), json.dumps(published_routes()).encode())
    config = GatewayConfig(port=0, authorization_timeout=5.0, request_timeout=REQUEST_TIMEOUT)
    auth = asyncio.create_task(run_auth(home, config, TRUST_DOMAIN))
    await _there(home.sockets / "auth.sock", auth)
    envoy = asyncio.create_task(run_envoy(home, config, TRUST_DOMAIN))
    endpoint = home.run / "endpoints" / "envoy.json"
    await _there(endpoint, envoy)
    authority = home.pki / "authorities" / "edge" / "cert.pem"
    yield Door(cluster, json.loads(endpoint.read_bytes())["port"], edge_client_context(authority))
    for task in (envoy, auth):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _there(path: Path, task: asyncio.Task[None]) -> None:
    async def exists() -> bool:
        assert not task.done(), task.exception()
        return await asyncio.to_thread(path.exists)

    await eventually(exists, f"{path.name} is there")


def _revoke_token(door: Door) -> None:
    (record,) = [each for each in TokenStore(door.cluster.home).read().records if each.name == "eve"]
    TokenStore(door.cluster.home).revoke(record.id)


def _lock_user(door: Door) -> None:
    Revocations.of(door.cluster.home).revoke("user", "eve")


REVOCATIONS: dict[str, Callable[[Door], None]] = {"token": _revoke_token, "user": _lock_user}


@pytest.mark.parametrize("kind", list(REVOCATIONS))
async def test_a_stream_outlives_the_time_out_of_requests_and_ends_with_its_credential(door: Door, kind: str) -> None:
    async with (
        door.listening("/v1/events", door.token("eve")) as hers,
        door.listening("/v1/events", door.token("ada")) as others,
    ):
        assert (await hers.until("overview")).data["taskmanagers"] == 0
        await others.until("overview")
        opened = time.monotonic()
        await door.cluster.start_taskmanager("tm-1")

        async def long_enough() -> bool:
            return time.monotonic() - opened > 1.5 * REQUEST_TIMEOUT

        await eventually(long_enough, "a request would have timed out")
        await door.cluster.start_taskmanager("tm-2")
        for stream in (hers, others):
            while (await stream.until("overview")).data["taskmanagers"] != 2:
                pass
        revoked = time.monotonic()
        await asyncio.to_thread(REVOCATIONS[kind], door)
        last = (await hers.rest())[-1]
        assert time.monotonic() - revoked < 1.0
        assert (last.name, last.data["type"]) == ("problem", "urn:sluice:problem:NotAsserted")
        await door.cluster.stop_taskmanager("tm-2")
        await others.until("overview")
