"""Real programs reach real servers from a job, unchanged, where the policy lets them; each connection is on record."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
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
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.name_server import NameServer, name_server
from tests.ordinary_user import NOBODY

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
ADDRESS = "127.0.71.1"
"""Of all servers: loopback, but not the address that everything else here has."""
SECONDS = 240
POLICY = """
[[egress]]
to = ["api.test:{https}", "index.test:{https}", "db.test:{database}"]
roles = ["admin"]
addresses = ["127.0.71.0/24"]
"""
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
"""


@dataclass
class Outside:
    """Servers that jobs connect to."""

    authority: trustme.CA
    nameserver: str = ""
    https: int = 0
    database: int = 0


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
    """HTTPS for ``api.test``, and a package index (PEP 503) for ``index.test``."""
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


async def serve(outside: Outside, ready: threading.Event, stop: threading.Event) -> None:
    async with name_server() as names:
        known: NameServer = names
        known.names |= dict.fromkeys(("api.test", "index.test", "db.test", "denied.test"), (ADDRESS,))
        runner = await web_server(outside.authority)
        outside.nameserver, outside.https = names.address, runner.addresses[0][1]
        ready.set()
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()


@contextlib.contextmanager
def postgresql(authority: trustme.CA) -> Iterator[int]:
    """A real PostgreSQL that takes connections with TLS alone; its port."""
    binaries = Path("/usr/lib/postgresql/15/bin")
    if not binaries.exists():
        binaries = ROOT / "build/egress/usr/lib/postgresql/15/bin"
    directory = Path(tempfile.mkdtemp(prefix="pg"))
    data = directory / "data"
    certificate = authority.issue_cert("db.test")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    (directory / "cert.pem").write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    (directory / "key.pem").chmod(0o600)
    user = NOBODY if os.geteuid() == 0 else None  # it refuses to run as root
    if user is not None:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, user, user)
    with contextlib.closing(socket.socket()) as probe:
        probe.bind((ADDRESS, 0))
        port = probe.getsockname()[1]

    def run(*argv: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": str(directory)}
        return subprocess.Popen(argv, env=environment, user=user, group=user, extra_groups=[] if user else None)

    made = run(str(binaries / "initdb"), "-D", str(data), "-U", "job", "-A", "reject", "--no-sync")
    assert made.wait(120) == 0
    (data / "pg_hba.conf").write_text("hostssl all job 127.0.0.0/8 trust\n")
    settings = {
        "listen_addresses": ADDRESS, "port": port, "unix_socket_directories": directory, "fsync": "off",
        "ssl": "on", "ssl_cert_file": directory / "cert.pem", "ssl_key_file": directory / "key.pem",
    }  # fmt: skip
    argv = [each for name, value in settings.items() for each in ("-c", f"{name}={value}")]
    server = run(str(binaries / "postgres"), "-D", str(data), *argv)
    try:
        eventually(lambda: _accepts(port) or server.poll() is not None, "PostgreSQL does not listen", 60)
        assert server.poll() is None
        yield port
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(directory, ignore_errors=True)


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    fetched = subprocess.run([ROOT / "scripts" / "get-egress-programs"], check=False, capture_output=True, text=True)
    assert fetched.returncode == 0, fetched.stderr
    made = Outside(trustme.CA())
    ready, stop = threading.Event(), threading.Event()
    serving = threading.Thread(target=lambda: asyncio.run(serve(made, ready, stop)))
    serving.start()
    try:
        assert ready.wait(60)
        with postgresql(made.authority) as made.database:
            yield made
    finally:
        stop.set()
        serving.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, outside: Outside) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("egress") / "home"
    home.mkdir(mode=0o700)
    (home / "sluice.toml").write_text(CONFIG.format(nameserver=outside.nameserver))
    (home / "gateway").mkdir(mode=0o700)
    policy = home / "gateway" / "policy.toml"
    policy.touch(0o600)
    default = (ROOT / "gateway/authz/default_policy.toml").read_text()
    policy.write_text(default + POLICY.format(https=outside.https, database=outside.database))
    running = start_cluster(home)
    yield running
    running.sluice("down")


def test_real_programs_reach_what_the_policy_allows(cluster: LocalCluster, outside: Outside) -> None:
    outside.authority.cert_pem.write_to_path(cluster.shared / "ca.pem")
    (cluster.shared / "ca.pem").chmod(0o644)
    jar = cluster.shared / "postgresql.jar"
    shutil.copyfile(ROOT / "build/egress/usr/share/java/postgresql.jar", jar)
    jar.chmod(0o644)
    told = {
        "shared": str(cluster.shared), "jar": str(jar), "psql": "/usr/lib/postgresql/15/bin/psql",
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
    assert results["by_jdbc"] == ("t", "")
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
        return {"api.test", "index.test", "db.test"} <= names and any(
            "denied.test" in path and decision == "deny" for path, decision in rows
        )

    eventually(recorded, "the connections are not in the audit log", 30)
