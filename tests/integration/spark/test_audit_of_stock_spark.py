"""What the audit says about a stock Spark master with its own TLS switched on, and why that is not enough."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.model import Kind, Listener, Report
from audit.runner import examine
from audit.subject import Options, Subject
from pki.identity import Role
from runtime.spark.java import find_java, find_spark
from tests.hostile import TestPki

pytestmark = [pytest.mark.spark]

DEADLINE_SECONDS = 100.0
_RPC = re.compile(r"Starting Spark master at spark://[^:]+:(\d+)")
_UI = re.compile(r"MasterWebUI.* at http://[^:]+:(\d+)")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[dict[str, int]]:
    """A standalone master with spark.ssl.rpc.enabled; the ports of its RPC and web UI."""
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
    options = ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "-Xmx256m", "-cp", find_spark().class_path]
    main = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    log = tmp_path / "master.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(find_java().executable), *options, *main, "--properties-file", str(properties)],
            env={"SPARK_LOCAL_IP": "127.0.0.1", "PATH": "/usr/bin:/bin"},
            stdout=output,
            stderr=output,
        )
    try:
        yield _ports(process, log)
    finally:
        process.kill()
        process.wait()


def _ports(process: subprocess.Popen[bytes], log: Path) -> dict[str, int]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        text = log.read_text(errors="replace")
        rpc, web = _RPC.search(text), _UI.search(text)
        if rpc and web:
            return {"rpc": int(rpc.group(1)), "ui": int(web.group(1))}
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def _audit(port: int, kind: Kind) -> Report:
    listener = Listener(name="stock", kind=kind, host="127.0.0.1", port=port)
    return examine("stock Spark", [Subject(listener, Options(timeout=30.0))])


def test_stock_tls_of_spark_requests_no_client_certificate_and_its_web_ui_is_open(master: dict[str, int]) -> None:
    rpc = {result.check: result for result in _audit(master["rpc"], Kind.MUTUAL).findings()}
    assert "MTL-01" in rpc, rpc.keys()
    assert "client certificates are not requested" in rpc["MTL-01"].seen
    assert "Spark" in rpc["MTL-01"].remedy
    assert not {"TLS-01", "LSN-03"} & rpc.keys(), rpc.keys()
    assert {result.check for result in _audit(master["ui"], Kind.HTTP).findings()} == {"EDG-09"}
