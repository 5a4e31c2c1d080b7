"""Spark Connect with everything real: PySpark's client, Envoy, the auth service, the relay, a session cluster."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.core.home import Home
from sluice.gateway.credentials.token_file import TokenStore, create_token
from sluice.pki.assertions.principal import TokenId
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from tests.chaos.processes.victims import has_words, patiently
from tests.free_ports import free_port
from tests.hostile import assert_refused
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster

CLIENT = Path(__file__).with_name("client.py")
SESSION_ID = "0aada0aa-1111-2222-3333-444444444444"
START_SECONDS = 400


@dataclass
class Notebook:
    """A client process and the JSON lines that it writes."""

    process: subprocess.Popen[str]

    def next(self) -> dict[str, Any]:
        """Return the next JSON line; fail if the process ends instead."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"at"'):
                told: dict[str, Any] = json.loads(line)
                return told
        raise AssertionError(f"the client ended: {self.process.wait()}")


@dataclass
class ConnectCluster:
    """The cluster, and clients of it."""

    cluster: LocalCluster

    @property
    def home(self) -> Home:
        return Home.at(self.cluster.home)

    def token(self, name: str) -> str:
        return create_token(self.home, name=name, role="submitter")

    @contextmanager
    def notebook(self, token: str, *arguments: str) -> Iterator[Notebook]:
        """A client of whoever has ``token``."""
        settings = self.cluster.json("connect")
        environment = {**os.environ, **settings["environment"], settings["token_variable"]: token}
        with (
            (self.cluster.home / "notebook.log").open("ab") as log,
            subprocess.Popen(
                [sys.executable, str(CLIENT), *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            try:
                yield Notebook(process)
            finally:
                process.kill()

    def session(self, owner: str) -> dict[str, Any]:
        """Return the job of the session of ``owner``."""
        jobs = self.cluster.get("/v1/jobs")["jobs"]
        (mine,) = (job for job in jobs if job["kind"] == "CONNECT" and job["owner"] == owner)
        detail: dict[str, Any] = self.cluster.job(mine["id"])
        return detail


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectCluster]:
    """Provide a cluster with room for two sessions and with a standby JobManager."""
    home = tmp_path_factory.mktemp("connect") / "home"
    home.mkdir()
    (home / "sluice.toml").write_text("[taskmanager]\ncount = 1\nslots = 2\n")
    running = ConnectCluster(start_cluster(home, "--port", str(free_port()), "--jobmanagers", "2"))
    yield running
    running.cluster.sluice("down")


@pytest.fixture(scope="module")
def ada(serving: ConnectCluster) -> str:
    """Provide ada's token; her session is running and has a view with her secret."""
    token = serving.token("ada")
    with serving.notebook(token, "work", "ada", SESSION_ID) as notebook:
        assert notebook.next()["sum"] == 9900
        assert {"error": "AnalysisException", "condition": "TABLE_OR_VIEW_NOT_FOUND"}.items() <= notebook.next().items()
        assert notebook.next()["view"] == "secret of ada"
    return token


@pytest.mark.timeout(START_SECONDS)
def test_a_session_is_a_job_with_executors_in_slots_and_mutual_tls(serving: ConnectCluster, ada: str) -> None:  # noqa: ARG001
    job = serving.session("ada")
    assert (job["state"], job["name"]) == ("RUNNING", "Spark Connect")
    assert [executor["state"] for executor in job["executors"]] == ["RUNNING"]
    evidence = serving.cluster.get(f"/v1/jobs/{job['id']}/connections")["connections"]
    seen = [each for each in evidence if each["channel"] == "connect"]
    assert seen
    assert {(each["peer"].split("/", 3)[3], each["protocol"]) for each in seen} == {("gateway/connect", "TLSv1.3")}


@pytest.mark.timeout(START_SECONDS)
async def test_the_connect_listener_admits_only_gateways(serving: ConnectCluster, ada: str) -> None:  # noqa: ARG001
    job = await asyncio.to_thread(serving.session, "ada")
    (published,) = serving.home.root.glob(f"work/*/jobs/{job['id']}/driver-1/work/connect.json")
    where = "127.0.0.1", json.loads(published.read_text())["port"]
    for role, name in ((Role.TASKMANAGER, "taskmanager-1"), (Role.JOBMANAGER, "jobmanager-1"), (Role.AUTH, "auth-1")):
        identity = TlsIdentity(serving.home.identity(role, name))
        domain = identity.spiffe_id.trust_domain
        await assert_refused(*where, identity.client_context(server_policy(Channel.CONNECT, domain), alpn=["h2"]))
    assert client_policy(Channel.CONNECT, domain).roles == {Role.GATEWAY}
    with socket.create_connection(where, timeout=30) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        plain.settimeout(30)
        assert b"HTTP" not in plain.recv(100)


@pytest.mark.timeout(START_SECONDS)
def test_the_audit_examines_the_connect_listener_and_finds_nothing(serving: ConnectCluster, ada: str) -> None:  # noqa: ARG001
    job = serving.session("ada")["id"]
    report = json.loads(serving.cluster.sluice("audit", "--json", timeout=START_SECONDS).stdout)
    name = f"connect-{job[:8]}"
    assert name in {each["listener"]["name"] for each in report["listeners"]}
    findings = [each for each in report["results"] if each["outcome"] == "finding"]
    assert [(each["check"], each["listener"], each["seen"]) for each in findings] == []
    admitted = {(each["check"], each["outcome"]) for each in report["results"] if each["listener"] == name}
    assert ("MTL-10", "passed") in admitted


@pytest.mark.timeout(START_SECONDS)
def test_claiming_another_user_id_does_not_give_access_to_that_users_session(serving: ConnectCluster, ada: str) -> None:
    with serving.notebook(serving.token("bob"), "peek", "ada", SESSION_ID) as notebook:
        assert notebook.next().get("condition") == "TABLE_OR_VIEW_NOT_FOUND"
    assert serving.session("bob")["id"] != serving.session("ada")["id"]
    with serving.notebook(ada, "peek", "nobody", SESSION_ID) as notebook:
        assert notebook.next()["found"] == ["secret of ada"]


@pytest.mark.timeout(START_SECONDS)
def test_a_query_survives_the_death_of_envoy(serving: ConnectCluster, ada: str) -> None:
    with serving.notebook(ada, "slow") as notebook:
        assert notebook.next()["begun"]
        job = serving.session("ada")["id"]
        eventually(lambda: serving.cluster.job(job)["progress"]["tasks_running"], "the query runs")
        (envoy,) = (each for each in serving.cluster.processes() if each.name().startswith("envoy"))
        envoy.kill()
        assert notebook.next().get("rows") == 40
        assert not psutil.pid_exists(envoy.pid)


@pytest.mark.timeout(START_SECONDS)
def test_a_query_and_its_session_survive_the_death_of_the_leader(serving: ConnectCluster, ada: str) -> None:
    """The next leader adopts the session's driver, and routes a returning client to it (ADR 103)."""
    before = serving.session("ada")
    with serving.notebook(ada, "slow") as notebook:
        assert notebook.next()["begun"]
        eventually(lambda: serving.cluster.job(before["id"])["progress"]["tasks_running"], "the query runs")
        leader = leading(serving)
        (process,) = (each for each in serving.cluster.processes() if has_words(each, ("run", "jobmanager", leader)))
        process.kill()
        eventually(patiently(lambda: leading(serving) != leader), "the other JobManager leads")
        assert notebook.next().get("rows") == 40

    def running() -> object:
        after = serving.cluster.job(before["id"])
        return after if after["state"] == "RUNNING" else None

    after = eventually(patiently(running), "the session runs under the other leader")
    assert after["attempt"] == before["attempt"]
    assert [each["id"] for each in after["executors"]] == [each["id"] for each in before["executors"]]
    with serving.notebook(ada, "peek", "ada", SESSION_ID) as notebook:
        assert notebook.next()["found"] == ["secret of ada"]


def leading(serving: ConnectCluster) -> str:
    """Return the name of the leading JobManager."""
    return str(serving.cluster.get("/v1/overview")["jobmanager"].rpartition("/")[2])


@pytest.mark.timeout(START_SECONDS)
def test_a_revocation_ends_the_running_query_of_its_token(serving: ConnectCluster, ada: str) -> None:  # noqa: ARG001
    token = serving.token("ada")
    with serving.notebook(token, "slow") as notebook:
        assert notebook.next()["begun"]
        job = serving.session("ada")["id"]
        eventually(lambda: serving.cluster.job(job)["progress"]["tasks_running"], "the query runs")
        TokenStore(serving.home).revoke(TokenId(token.split("_")[1]))
        told = notebook.next()
        assert "rows" not in told
        assert "UNAUTHENTICATED" in told["text"] or "not valid" in told["text"], told
