"""JobManager processes and a real API server: each fault ten times, with jobs running.

No job is lost, and none runs twice at a time. The API server's audit log shows that no former leader ever
wrote again.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.core.home import Home
from sluice.runtime.config import JobManagerConfig, RuntimeConfig, TaskManagerConfig
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.ha.kubernetes.pointers import EPOCH, MAX_TOTAL_BYTES, TERM
from sluice.runtime.sandbox import IsolationConfig
from tests.free_ports import free_ports
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.kubernetes.api_server import NAMESPACE, ApiServer
from tests.shared_folder import shared_folder
from tests.system.ha.world import World, eventually

TIMES = 10
SESSION_SECONDS = 5.0
LEASE_SECONDS = 20.0
AWAY_SECONDS = 60.0
AHEAD = {"jm-1": 120.0, "jm-2": -120.0}
"""Seconds, of the two machines' clocks: together less than the five minutes by which certificates are backdated."""
LEFT_BYTES = 1536
"""Of a ConfigMap that is full: not enough for another job, and enough for what a job that runs writes meanwhile."""
LONG = 180.0
pytestmark = pytest.mark.timeout(1500)


@dataclass
class Pair:
    """Two JobManagers of one cluster, each with a token of its own that can be revoked."""

    server: ApiServer
    world: World
    cluster: str

    async def call(self, method: str, path: str, content: object = None, kind: str = "json") -> tuple[int, Any]:
        """Send a request as the administrator."""
        return await asyncio.to_thread(self.server.call, method, path, content, kind=kind)

    async def token(self, name: str) -> str:
        """Write a new token to a JobManager's token file, as the kubelet does.

        Returns the name of the secret that the token is bound to.
        """
        secret = f"{self.cluster}-{secrets.token_hex(4)}"
        path = f"/api/v1/namespaces/{NAMESPACE}"
        status, made = await self.call("POST", f"{path}/secrets", {"metadata": {"name": secret}})
        assert status == 201, made
        bound = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made["metadata"]["uid"]}
        spec = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        status, made = await self.call("POST", f"{path}/serviceaccounts/{self.cluster}/token", spec)
        assert status == 201, made
        file = self.world.tmp / f"account-{name}" / "token"
        new = file.with_name("..new")
        new.write_text(made["status"]["token"])
        new.rename(file)
        return secret

    async def expire(self, secret: str) -> None:
        """Revoke the token that is bound to ``secret``; it is refused at once or a few seconds later."""
        assert (await self.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}"))[0] == 200

    async def leader(self) -> str:
        """Wait until a JobManager leads, and return its name."""

        async def named() -> str:
            for name in self.world.masters:
                with suppress(Exception):  # one that is dead, paused, or stands by alone
                    status, document = await asyncio.wait_for(self.world.call(name, "GET", "/v1/overview"), 5)
                    if status == 200:
                        return str(document["jobmanager"]).rpartition("/")[2]
            return ""

        return str(await eventually(named, "somebody leads", LONG))

    async def other_than(self, name: str) -> str:
        """Wait until a JobManager other than ``name`` leads, and return its name."""

        async def another() -> str:
            found = await self.leader()
            return found if found != name else ""

        return str(await eventually(another, f"another one than {name} leads", LONG))

    @property
    def lease(self) -> str:
        """The path of the Lease."""
        return self.server.objects("leases", f"sluice-{self.cluster}")

    @property
    def pointers(self) -> str:
        """The path of the ConfigMap."""
        return self.server.objects("configmaps", f"sluice-{self.cluster}-pointers")

    async def survive(self, fault: Callable[[], Awaitable[None]]) -> None:
        """Run a job during a fault: it is not lost, never runs twice at a time, and finishes."""
        world = self.world
        place = world.tmp / f"job-{secrets.token_hex(4)}"
        place.mkdir()
        job_id = await world.submit(home=await self.leader(), alone=str(place), flag=str(place / "go"))
        await eventually(lambda: _exists(place / "runs"), "the job runs", LONG)
        await fault()

        async def in_state(*states: str) -> bool:
            job = await asyncio.wait_for(world.job(job_id, await self.leader()), 10)
            return job is not None and job["state"] in states and (job["state"] != "RUNNING" or job["driver"] != "")

        with suppress(KeyError):
            await eventually(lambda: in_state("RUNNING", "FINISHED"), "the job goes on", LONG)
        (place / "go").touch()
        await eventually(lambda: in_state("FINISHED"), "the job ends well", LONG)
        assert not (place / "twice").exists(), "the job ran twice at the same time"
        job = await world.job(job_id, await self.leader())
        runs = [int(each) for each in (place / "runs").read_text().split()]
        assert runs == sorted(set(runs)), "no attempt ran twice"
        assert runs[-1] == job["attempt"], (runs, job["attempt"])

    async def no_job_is_lost(self, count: int) -> None:
        """Check that all accepted jobs are there, and have finished."""
        jobs = await self.world.jobs(await self.leader())
        assert [each["state"] for each in jobs] == ["FINISHED"] * count

    def former_leaders_write_nothing(self) -> int:
        """Check in the audit log that no term writes after a later one has; returns the number of terms."""
        terms: list[str] = []
        for line in self.server.audit.read_text().splitlines():
            event = json.loads(line)
            what = event.get("objectRef") or {}
            if what.get("name") != f"sluice-{self.cluster}-pointers" or event["verb"] not in {"update", "create"}:
                continue
            if int((event.get("responseStatus") or {}).get("code", 0)) not in {200, 201}:
                continue
            annotations = (event["requestObject"]["metadata"].get("annotations")) or {}
            if not terms or annotations[TERM] != terms[-1]:
                assert annotations[TERM] not in terms, f"term {annotations[EPOCH]} wrote after a later one"
                terms.append(annotations[TERM])
        return len(terms)


async def _exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240  a file of this machine


@pytest.fixture
async def pair(server: ApiServer, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two JobManagers, ``jm-1`` and ``jm-2``, with accounts and tokens; nothing is started yet."""
    cluster = f"f{secrets.token_hex(4)}"
    ports = free_ports(4)
    base = RuntimeConfig(
        trust_domain=TRUST_DOMAIN,
        jobmanager=JobManagerConfig(heartbeat_interval=0.5, heartbeat_timeout=15.0, cancel_grace=1.0),
        taskmanager=TaskManagerConfig(slots=2),
        isolation=IsolationConfig(writable=(str(shared_folder(tmp_path, "jobs")),)),
        ha=HaConfig(
            mode="kubernetes",
            storage=str(tmp_path / "shared"),
            cluster=cluster,
            session_timeout=SESSION_SECONDS,
            lease=LEASE_SECONDS,
            jobmanagers=("jm-1", "jm-2"),
            kubernetes_api=server.url,
            kubernetes_namespace=NAMESPACE,
        ),
    )
    world = World(TestPki(tmp_path), tmp_path, base)
    made = Pair(server, world, cluster)
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    assert (await made.call("POST", accounts, {"metadata": {"name": cluster}}))[0] == 201
    await asyncio.to_thread(allow, server, cluster)
    for number, name in enumerate(("jm-1", "jm-2")):
        account = server.account(tmp_path / f"account-{name}", "")
        await made.token(name)
        world.declare(name, Home.at(tmp_path / name), rpc_port=ports[2 * number], rest_port=ports[2 * number + 1])
        master = world.masters[name]
        ha = msgspec.structs.replace(master.config.ha, kubernetes_account=str(account))
        master.config = msgspec.structs.replace(master.config, ha=ha)
    try:
        yield made
    finally:
        await world.close()


def allow(server: ApiServer, cluster: str) -> None:
    """Grant the service account the rights in docs/howto/high-availability.md."""
    lease, pointers = f"sluice-{cluster}", f"sluice-{cluster}-pointers"
    coordination = ["coordination.k8s.io"]
    rules = [
        {"apiGroups": coordination, "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {"apiGroups": coordination, "resources": ["leases"], "resourceNames": [lease], "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [pointers], "verbs": ["get", "update"]},
    ]
    server.allow(cluster, f"system:serviceaccount:{NAMESPACE}:{cluster}", rules)


async def start(pair: Pair, **options: Any) -> None:
    """Start both JobManagers, one after the other, and a TaskManager."""
    for name in ("jm-1", "jm-2"):
        pair.world.start(name, **{key: value[name] for key, value in options.items()})
        await pair.leader()
    await pair.world.start_taskmanager("tm-1", jobmanagers=pair.world.rpc_addresses)


async def test_jobs_survive_when_the_leader_is_killed(pair: Pair) -> None:
    await start(pair)

    async def fault() -> None:
        name = await pair.leader()
        pair.world.masters[name].kill()
        await pair.other_than(name)
        pair.world.start(name)

    for _ in range(TIMES):
        await pair.survive(fault)
    await pair.no_job_is_lost(TIMES)
    assert pair.former_leaders_write_nothing() == TIMES + 1


async def test_jobs_are_restarted_after_the_api_server_was_away_for_a_minute(pair: Pair) -> None:
    """Nobody leads without it, and drivers do not outlive their lease: then the job starts again."""
    await start(pair)

    async def fault() -> None:
        with pair.server.away():
            await asyncio.sleep(AWAY_SECONDS)

    for _ in range(TIMES):
        await pair.survive(fault)
    await pair.no_job_is_lost(TIMES)
    pair.former_leaders_write_nothing()


async def test_a_paused_leader_writes_nothing_when_it_wakes_up_under_another_leader(pair: Pair) -> None:
    await start(pair)

    async def fault() -> None:
        name = await pair.leader()
        pair.world.masters[name].kill(signal.SIGSTOP)
        try:
            await pair.other_than(name)
        finally:
            pair.world.masters[name].kill(signal.SIGCONT)

    for _ in range(TIMES):
        await pair.survive(fault)
    await pair.no_job_is_lost(TIMES)
    assert pair.former_leaders_write_nothing() >= TIMES + 1


async def test_leadership_changes_work_when_the_clocks_differ_by_minutes(pair: Pair, fake_time: Path) -> None:
    """One clock is ahead, one behind, and leadership goes from one JobManager to the other."""
    faked = {"LD_PRELOAD": str(fake_time), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    clocks = {name: {**faked, "FAKETIME": f"{ahead:+.0f}s"} for name, ahead in AHEAD.items()}
    pair.world.ahead.update(AHEAD)
    await start(pair, environment=clocks)
    seen = set()

    async def fault() -> None:
        name = await pair.leader()
        _, lease = await pair.call("GET", pair.lease)
        seen.add((name, abs(_age(lease["spec"]["renewTime"])) > 60))
        pair.world.masters[name].kill(signal.SIGTERM)
        await pair.other_than(name)
        process = pair.world.masters[name].process
        assert process is not None
        await asyncio.to_thread(process.wait)
        pair.world.start(name, environment=clocks[name])

    for _ in range(TIMES):
        await pair.survive(fault)
    assert seen == {("jm-1", True), ("jm-2", True)}, "the clocks did differ"
    await pair.no_job_is_lost(TIMES)
    pair.former_leaders_write_nothing()


async def test_a_former_leader_writes_nothing_after_the_lease_was_deleted(pair: Pair) -> None:
    await start(pair)

    async def fault() -> None:
        _, before = await pair.call("GET", pair.lease)
        assert (await pair.call("DELETE", pair.lease))[0] == 200

        async def made_again() -> bool:
            status, lease = await pair.call("GET", pair.lease)
            holder = (lease.get("spec") or {}).get("holderIdentity")
            return status == 200 and bool(holder) and holder != before["spec"]["holderIdentity"]

        await eventually(made_again, "there is a Lease of another term", LONG)

    for _ in range(TIMES):
        await pair.survive(fault)
    await pair.no_job_is_lost(TIMES)
    assert pair.former_leaders_write_nothing() >= TIMES + 1


async def test_a_full_config_map_of_pointers_refuses_new_jobs_and_lets_running_ones_finish(pair: Pair) -> None:
    """A new job is refused, and a running one finishes."""
    await start(pair)

    async def fault() -> None:
        _, present = await pair.call("GET", pair.pointers)
        room = MAX_TOTAL_BYTES - sum(len(key) + len(value) for key, value in present["data"].items())
        stuffing = {"stuffing.x": "0:" + "A" * (room - LEFT_BYTES)}
        status, answer = await pair.call("PATCH", pair.pointers, {"data": stuffing}, kind="merge-patch+json")
        assert status == 200, answer
        with pytest.raises(AssertionError, match="pointers have"):
            await pair.world.submit(home=await pair.leader())
        nothing = dict.fromkeys(stuffing)
        assert (await pair.call("PATCH", pair.pointers, {"data": nothing}, kind="merge-patch+json"))[0] == 200

    for _ in range(TIMES):
        await pair.survive(fault)
    await pair.no_job_is_lost(TIMES)
    pair.former_leaders_write_nothing()


async def test_the_standby_takes_over_when_the_leaders_token_expires_without_a_new_one(pair: Pair) -> None:
    """The leader is refused, so the other one leads; with a new token it takes part again."""
    await start(pair)
    bound = {name: await pair.token(name) for name in pair.world.masters}

    async def fault() -> None:
        name = await pair.leader()
        await pair.expire(bound[name])
        await pair.other_than(name)
        bound[name] = await pair.token(name)

    for _ in range(TIMES):
        await pair.survive(fault)
    await pair.no_job_is_lost(TIMES)
    assert pair.former_leaders_write_nothing() >= TIMES + 1


def _age(renewed: str) -> float:
    return time.time() - dt.datetime.strptime(renewed, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=dt.UTC).timestamp()
