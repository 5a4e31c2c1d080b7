"""A real job's Spark UI through the gateway.

Authorized users can see it, nobody can change anything with it, and it is reachable nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from sluice.client.access import resolve_access
from sluice.core.home import Home
from sluice.gateway.credentials.access_tokens import ACCESS_TOKEN_COOKIE
from sluice.gateway.credentials.token_file import create_token
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.edge_client import edge_client_context
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.processes import command_line
from tests.system.browser.chromium import chromium, pin

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PIPELINE = """
import pathlib, sys, time
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("shown").getOrCreate()
spark.sparkContext.setJobDescription("<script>document.title = 'taken over'</script> counting")
print("count", spark.range(0, 100, 1, 2).count())
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


@dataclass
class Shown:
    """A running job, and what is needed to call the gateway as a client."""

    cluster: LocalCluster
    job: str
    url: str
    ca_file: Path
    viewer: str

    @property
    def base(self) -> str:
        return f"/v1/jobs/{self.job}/ui"

    def ask(
        self, path: str, *, method: str = "GET", token: str | None = None, body: bytes | None = None
    ) -> tuple[HTTPResponse, str]:
        """Make one request; an empty ``token`` sends no credentials."""
        address = urlsplit(self.url)
        connection = HTTPSConnection(
            str(address.hostname), address.port, timeout=60, context=edge_client_context(self.ca_file)
        )
        token = self.viewer if token is None else token
        try:
            connection.request(method, path, body=body, headers={"authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()

    def jvms(self) -> list[psutil.Process]:
        """The JVM of the job's driver."""
        return [each for each in self.cluster.processes() if "PythonGatewayServer" in " ".join(command_line(each))]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    directory = tmp_path_factory.mktemp("ui")
    cluster = start_cluster(directory / "home", "--taskmanagers", "1")
    try:
        pipeline = directory / "shown.py"
        pipeline.write_text(PIPELINE)
        job = cluster.submit(pipeline, str(cluster.shared / "enough"))
        home = Home.at(cluster.home)
        target = resolve_access(home)
        viewer = create_token(home, name="vera", role="viewer")
        assert target.ca_file is not None
        found = Shown(cluster, job, target.url, target.ca_file, viewer)
        cluster.wait_for_state(job, "RUNNING")
        eventually(
            lambda: "count" in cluster.sluice("jobs", "logs", job, "--source", "driver.stdout").stdout,
            "the first Spark job is done",
        )
        yield found
        (cluster.shared / "enough").touch()
        cluster.wait_for_state(job, "FINISHED")
        eventually(lambda: found.ask(found.base)[0].status in {200, 202}, "the UI of the ended job, from the history")
    finally:
        cluster.sluice("down")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "Spark Jobs"),
        ("/jobs", "Spark Jobs"),
        ("/jobs/job?id=0", "Details for Job 0"),
        ("/stages", "Stages for All Jobs"),
        ("/stages/stage?id=0&attempt=0", "Details for Stage 0"),
        ("/storage", "Storage"),
        ("/environment", "Runtime Information"),
        ("/executors", "Executors"),
        ("/SQL", "SQL"),
        ("/SQL/execution?id=0", "Details for Query 0"),
    ],
)
def test_pages_are_served_with_a_content_security_policy_and_no_cookie(shown: Shown, path: str, says: str) -> None:
    answer, text = shown.ask(shown.base + path)
    assert (answer.status, answer.headers.get_content_type()) == (200, "text/html")
    assert says in text
    assert answer.headers["set-cookie"] is None
    assert "script-src 'sha256-" in answer.headers["content-security-policy"]
    assert not re.search(r'(?:href|action)="[^"]*(?:kill|threadDump)', text), "nothing that changes anything is offered"
    for link in set(re.findall(r'(?:href|src)="(/[^"#]*)', text)):
        assert link.startswith(shown.base), link


def test_every_link_of_the_first_pages_works(shown: Shown) -> None:
    links: set[str] = set()
    for page in ("/jobs", "/stages", "/SQL", "/executors"):
        links |= set(re.findall(r'(?:href|src)="(/[^"#]*)', shown.ask(shown.base + page)[1]))
    assert len(links) > 20
    assert any("/static/" in link for link in links)
    for link in sorted(links):
        status = shown.ask(link.replace("&amp;", "&"))[0].status
        assert status == 200, link


def test_the_rest_api_of_the_ui_is_served(shown: Shown) -> None:
    answer, text = shown.ask(f"{shown.base}/api/v1/applications/{_application(shown)}/allexecutors")
    assert answer.headers.get_content_type() == "application/json"
    assert "driver" in {each["id"] for each in json.loads(text)}


def _application(shown: Shown) -> str:
    (application,) = json.loads(shown.ask(shown.base + "/api/v1/applications")[1])
    return str(application["id"])


def test_the_secret_of_spark_is_redacted_in_the_ui(shown: Shown) -> None:
    application = _application(shown)
    _, text = shown.ask(f"{shown.base}/api/v1/applications/{application}/environment")
    properties = dict(json.loads(text)["sparkProperties"])
    assert properties["spark.authenticate.secret"] == "*********(redacted)"


@pytest.mark.parametrize(
    "path", ["/jobs/job/kill?id=0", "/stages/stage/kill?id=0", "/executors/threadDump?executorId=driver"]
)
def test_kill_and_thread_dump_links_are_refused_and_the_job_keeps_running(shown: Shown, path: str) -> None:
    assert shown.ask(shown.base + path)[0].status == 404
    assert shown.ask(shown.base + path, method="POST", body=b"")[0].status in {403, 404, 405}
    assert shown.cluster.job(shown.job)["state"] == "RUNNING"


def test_requests_without_a_token_or_for_an_unknown_job_are_refused(shown: Shown) -> None:
    for path in ("", "/jobs", "/static/webui.js"):
        assert shown.ask(shown.base + path, token="")[0].status == 401
        assert shown.ask(shown.base.replace(shown.job, "f" * 32) + path)[0].status == 404


def test_the_ui_opens_no_listener_of_its_own(shown: Shown) -> None:
    """The driver listens for RPC, blocks and PySpark's private gateway only. And the audit finds nothing."""
    (jvm,) = shown.jvms()
    listening = [each for each in jvm.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    assert len(listening) == 3, listening
    mutual = 0
    for each in listening:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with socket.create_connection((each.laddr.ip, each.laddr.port), timeout=10) as raw:
                raw.settimeout(5)
                with context.wrap_socket(raw) as tls:
                    tls.sendall(b"GET /jobs/ HTTP/1.0\r\n\r\n")
                    assert b"Spark" not in tls.recv(1000)
        except (OSError, TimeoutError) as error:
            mutual += "certificate required" in str(error).lower() or "CERTIFICATE_REQUIRED" in str(error)
    assert mutual == 2, "without a certificate nobody gets in"
    audited = shown.cluster.sluice("audit", "--json", timeout=300)
    assert audited.returncode == 0, audited.stdout[-3000:]


def test_in_a_browser_only_scripts_of_the_gateway_run(shown: Shown, tmp_path: Path) -> None:
    asyncio.run(_browse(shown, tmp_path))


async def _browse(shown: Shown, tmp_path: Path) -> None:
    home = Home.at(shown.cluster.home)
    (answer, text) = shown.ask("/auth/exchange", method="POST", body=b"")
    assert answer.status == 200, text
    cookie = {
        "name": ACCESS_TOKEN_COOKIE,
        "value": json.loads(text)["pass"],
        "secure": True,
        "httpOnly": True,
        "path": "/",
    }
    edge = home.identity(Role.GATEWAY, "edge") / "chain.pem"
    async with chromium(tmp_path / "profile", [pin(edge)]) as tab:
        await tab.put_cookies([cookie], shown.url)
        await tab.go(f"{shown.url}{shown.base}/jobs")
        assert "counting" in await tab.text()
        # 1. The description of the job is not a script, nor would one run.
        assert "taken over" not in await tab.evaluate("document.title")
        await tab.evaluate(
            "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
            " document.body.appendChild(s); })()"
        )
        assert await tab.evaluate("window.ran === undefined")
        # 2. What the browser holds for the gateway is of no use to a page: it may ask for nothing but this UI.
        blocked = "fetch('/v1/jobs').then(() => 'asked', () => 'refused')"
        assert await tab.evaluate(blocked) == "refused"
        # 3. Spark's own scripts run: the executors are filled in by them.
        await tab.go(f"{shown.url}{shown.base}/executors")
        await tab.until("document.body.innerText.includes('driver')", "the table of executors")
