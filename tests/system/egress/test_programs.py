"""Real programs reach real servers from a job, unchanged, where the policy lets them; each connection is on record."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import ssl
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from sluice.core.home import Home
from sluice.gateway.audit_log.log import audit_directory
from sluice.gateway.audit_log.verification import read_records
from sluice.gateway.authz import DEFAULT_POLICY
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.system.egress.outside import (
    ADDRESS,
    CLIENTS,
    UNPACKED,
    fetched,
    in_thread,
    libraries,
    name_service,
    nats,
    postgresql,
    program,
)

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SECONDS = 240
POLICY = """
[[egress]]
to = ["api.test:{https}", "index.test:{https}", "db.test:{database}"]
roles = ["admin"]
addresses = ["127.0.71.0/24"]

[[egress]]
to = ["messages.test:{messages}"]
protocol = "tcp"
roles = ["admin"]
addresses = ["127.0.71.0/24"]
"""
NAMES = ("api.test", "index.test", "db.test", "messages.test", "denied.test")
CONFIG = """
[taskmanager]
count = 1
slots = 2
slot_memory_mb = 512

[spark]
driver_memory_mb = 512
executors = 1

[shuffle]
enabled = false

[egress]
mode = "enforce"
nameservers = ["{nameserver}"]

[isolation]
read_only = ["{unpacked}"]
writable = ["{shared}"]
"""


@dataclass
class Outside:
    """Servers that jobs connect to."""

    authority: trustme.CA
    nameserver: str
    https: int
    database: int
    messages: int


def example_wheel() -> tuple[str, bytes]:
    """A wheel with nothing in it, and its file name."""
    name, version = "sluice_egress_example", "1.0"
    file = Path(tempfile.mkdtemp()) / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    data = file.read_bytes()
    shutil.rmtree(file.parent)
    return file.name, data


async def web_server(authority: trustme.CA) -> web.AppRunner:
    """Start an HTTPS server for ``api.test`` and for ``index.test``, a package index (PEP 503)."""
    name, data = example_wheel()
    digest = hashlib.sha256(data).hexdigest()

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello from outside")

    async def page(_: web.Request) -> web.Response:
        return web.Response(
            text=f'<!DOCTYPE html><a href="/files/{name}#sha256={digest}">{name}</a>', content_type="text/html"
        )

    async def file(_: web.Request) -> web.Response:
        return web.Response(body=data, content_type="application/octet-stream")

    application = web.Application()
    application.router.add_get("/hello", hello)
    application.router.add_get("/simple/sluice-egress-example/", page)
    application.router.add_get(f"/files/{name}", file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("api.test", "index.test", "denied.test").configure_cert(context)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0, ssl_context=context).start()
    return runner


@contextlib.contextmanager
def web_service(authority: trustme.CA) -> Iterator[int]:
    """Run the server of :func:`web_server` in a thread; yield its port."""
    ports: list[int] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        runner = await web_server(authority)
        ports.append(runner.addresses[0][1])
        ready.set()
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()

    with in_thread(serve, stop):
        assert ready.wait(60)
        yield ports[0]


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    fetched()
    authority = trustme.CA()
    with (
        name_service(*NAMES) as nameserver,
        web_service(authority) as https,
        postgresql(authority, "db.test") as database,
        nats(authority, "messages.test") as messages,
    ):
        yield Outside(authority, nameserver, https, database, messages)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, outside: Outside) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("egress") / "home"
    home.mkdir(mode=0o700)
    (home / "sluice.toml").write_text(
        CONFIG.format(nameserver=outside.nameserver, unpacked=UNPACKED, shared=LocalCluster(home).shared)
    )
    (home / "gateway").mkdir(mode=0o700)
    policy = home / "gateway" / "policy.toml"
    policy.touch(0o600)
    policy.write_text(
        DEFAULT_POLICY.read_text()
        + POLICY.format(https=outside.https, database=outside.database, messages=outside.messages)
    )
    running = start_cluster(home)
    yield running
    running.sluice("down")


def test_real_programs_reach_the_servers_that_the_policy_allows(cluster: LocalCluster, outside: Outside) -> None:
    outside.authority.cert_pem.write_to_path(cluster.shared / "ca.pem")
    (cluster.shared / "ca.pem").chmod(0o644)
    told = {
        "shared": str(cluster.shared), "packages": str(CLIENTS), "libraries": libraries(),
        "jar": str(UNPACKED / "usr/share/java/postgresql.jar"), "psql": program("/usr/lib/postgresql/15/bin/psql"),
        "messages": f"nats://messages.test:{outside.messages}",
        "api": f"https://api.test:{outside.https}", "index": f"https://index.test:{outside.https}",
        "denied": f"https://denied.test:{outside.https}/hello", "database": ["db.test", outside.database],
    }  # fmt: skip
    job_id = cluster.submit(HERE / "programs.py", json.dumps(told))
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED", "CANCELED", seconds=SECONDS)
    log = cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout").stdout
    assert job["state"] == "FINISHED", log
    results = {
        name: (result, error)
        for name, result, error in (
            json.loads(line.partition("PROGRAM ")[2]) for line in log.splitlines() if "PROGRAM [" in line
        )
    }
    hello = ("hello from outside", "")
    assert {name: results[name] for name in ("by_urllib", "by_requests", "by_requests_in_udf")} == {
        "by_urllib": hello, "by_requests": hello, "by_requests_in_udf": hello
    }  # fmt: skip
    assert results["by_pip"] == ("sluice_egress_example-1.0-py3-none-any.whl", "")
    assert results["by_psql"] == ("TLSv1.3 true", "")
    assert results["by_psycopg"] == ("499500 True", "")
    assert results["by_jdbc"] == ("t", "")
    assert results["by_nats"] == ("HELLO", "")
    refused, error = results["not_allowed"]
    assert refused == ""
    assert "denied.test" in error

    def recorded() -> bool:
        rows = [
            (record.path, record.decision)
            for record in read_records(audit_directory(Home.at(cluster.home)))
            if record.event == "egress"
        ]
        names = {path.partition(":")[0] for path, decision in rows if decision == "allow"}
        return {"api.test", "index.test", "db.test", "messages.test"} <= names and any(
            "denied.test" in path and decision == "deny" for path, decision in rows
        )

    eventually(recorded, "the connections are not in the audit log", 30)
