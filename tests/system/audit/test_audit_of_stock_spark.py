"""The audit of a stock Spark standalone cluster with its own TLS: it authenticates no clients."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.audit.model import Kind, Listener, Report
from sluice.audit.runner import examine
from sluice.audit.subject import Options, Subject
from sluice.pki.spiffe_id import Role
from sluice.runtime.spark.java import find_java, find_spark
from tests.hostile import TestPki

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

DEADLINE_SECONDS = 150.0
_RPC = re.compile(r"Starting Spark master at spark://[^:]+:(\d+)")
_WORKER = re.compile(r"Starting Spark worker [^:]+:(\d+) with")
_UI = re.compile(r"MasterWebUI.* at http://[^:]+:(\d+)")


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Start a standalone master and a worker with spark.ssl.rpc.enabled.

    Yields the ports of their RPC and of one web UI.
    """
    pki = TestPki(tmp_path)
    identity = pki.process(Role.JOBMANAGER).directory
    password = (identity / "identity.p12.pass").read_text().strip()
    settings = {
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.protocol": "TLSv1.3",
        "spark.ssl.rpc.keyStore": str(identity / "identity.p12"),
        "spark.ssl.rpc.keyStoreType": "PKCS12",
        "spark.ssl.rpc.keyStorePassword": password,
        "spark.ssl.rpc.keyPassword": password,
        "spark.master.rest.enabled": "false",
    }
    properties = tmp_path / "spark.conf"
    properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    properties.chmod(0o600)
    with ExitStack() as stack:
        master = _Daemon(tmp_path / "master.log", "master.Master", properties)
        rpc, ui = stack.enter_context(master.running(_RPC, _UI))
        worker = _Daemon(tmp_path / "worker.log", "worker.Worker", properties, f"spark://127.0.0.1:{rpc}")
        (worker_rpc,) = stack.enter_context(worker.running(_WORKER))
        yield {"master": rpc, "ui": ui, "worker": worker_rpc}


class _Daemon:
    """A process of the standalone cluster."""

    def __init__(self, log: Path, main: str, properties: Path, *arguments: str) -> None:
        options = ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "-Xmx256m", "-cp", find_spark().class_path]
        listening = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--properties-file", str(properties)]
        java = str(find_java().executable)
        self._argv = [java, *options, f"org.apache.spark.deploy.{main}", *listening, *arguments]
        self._log = log

    @contextlib.contextmanager
    def running(self, *said: re.Pattern[str]) -> Iterator[list[int]]:
        """Run the process; yield the ports found in its log."""
        environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": "/usr/bin:/bin"}
        with self._log.open("wb") as output:
            process = subprocess.Popen(self._argv, env=environment, cwd=self._log.parent, stdout=output, stderr=output)
        try:
            yield self._ports(process, said)
        finally:
            process.kill()
            process.wait()

    def _ports(self, process: subprocess.Popen[bytes], said: Sequence[re.Pattern[str]]) -> list[int]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            text = self._log.read_text(errors="replace")
            found = [int(match.group(1)) for pattern in said if (match := pattern.search(text))]
            if len(found) == len(said):
                return found
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)


def _audit(port: int, kind: Kind) -> Report:
    listener = Listener(name="stock", kind=kind, host="127.0.0.1", port=port)
    return examine("stock Spark", [Subject(listener, Options(timeout=30.0))])


def test_stock_tls_of_spark_requests_no_client_certificate_and_its_web_ui_is_open(ports: dict[str, int]) -> None:
    for daemon in ("master", "worker"):
        found = {result.check: result for result in _audit(ports[daemon], Kind.MUTUAL).findings()}
        assert "MTL-01" in found, found.keys()
        assert "client certificates are not requested" in found["MTL-01"].seen
        assert "Spark" in found["MTL-01"].remedy
        assert not {"TLS-01", "TLS-02", "LSN-03"} & found.keys(), found.keys()
    assert {result.check for result in _audit(ports["ui"], Kind.HTTP).findings()} == {"EDG-09"}
