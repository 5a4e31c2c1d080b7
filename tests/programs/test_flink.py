"""Flink from PyPI with the files of `sluice pki export --for flink`.

A session cluster runs Flink's own example.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.pki.export.programs.catalogue import Program, export_for
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.spark.java import find_java
from tests.free_ports import free_ports
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki
from tests.integration.programs.ports import client_context, exchange, let_in, refuses, running, tail, until
from tests.programs.conftest import program

pytestmark = pytest.mark.timeout(900)

FLINK = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "flink")
OTHER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
PIN = re.compile(r"^security\.ssl\.internal\.cert\.fingerprint: .*\n", re.MULTILINE)
HOSTILE = (Hostile.NO_CERTIFICATE, Hostile.EDGE_CERTIFICATE, Hostile.FOREIGN_CA, Hostile.SELF_SIGNED)
JOB_SECONDS = 400
START_SECONDS = 240.0

SETTINGS = """\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {jobmanager}
jobmanager.bind-host: 127.0.0.1
jobmanager.memory.process.size: 1000m
rest.address: localhost
rest.bind-address: 127.0.0.1
rest.port: {rest}
blob.server.port: {blob}
taskmanager.host: localhost
taskmanager.bind-host: 127.0.0.1
taskmanager.rpc.port: {taskmanager}
taskmanager.data.port: {data}
taskmanager.memory.process.size: 1500m
taskmanager.numberOfTaskSlots: 2
parallelism.default: 2
io.tmp.dirs: {temporary}
"""
INTERNAL = ("jobmanager", "taskmanager", "blob", "data")
"""RPC of both, and where files and records are handed over."""


@dataclass(frozen=True)
class Cluster:
    """A JobManager and a TaskManager."""

    root: Path
    pki: TestPki
    identity: Path
    ports: dict[str, int]
    environment: dict[str, str]

    def overview(self, context: ssl.SSLContext) -> bytes:
        """Return the REST endpoint's answer to ``GET /overview``."""
        return exchange(self.ports["rest"], context, b"GET /overview HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def logs(self) -> str:
        """The ends of both logs."""
        return "\n".join(tail(self.root / f"{name}.out") for name in ("jobmanager", "taskmanager"))

    def listening(self) -> dict[str, int]:
        """The internal ports."""
        return {name: self.ports[name] for name in INTERNAL}


def start(root: Path, *, pinned: bool, stack: ExitStack) -> Cluster:
    """Start a session cluster with Flink's defaults, the test's ports and the exported settings."""
    pki = TestPki(root / "pki")
    identity, place = pki.directory(FLINK), root / "conf"
    export_for(Program.FLINK, identity, place, now=utc_now())
    home = next(program("flink").glob("lib/python3*/site-packages/pyflink"))
    names = (*INTERNAL, "rest")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    (root / "tmp").mkdir()
    exported = (place / "config.yaml").read_text()
    assert len(PIN.findall(exported)) == 1
    # What Java 17 must open for Flink stands in the configuration that Flink comes with.
    (opened,) = re.findall(r"^ +all: (.+)$", (home / "conf" / "config.yaml").read_text(), re.MULTILINE)
    settings = SETTINGS.format(temporary=root / "tmp", **ports) + f"env.java.opts.all: {opened}\n"
    (place / "config.yaml").write_text((exported if pinned else PIN.sub("", exported)) + settings)
    for file in home.glob("conf/log4j*.properties"):
        (place / file.name).write_bytes(file.read_bytes())
    environment = {
        "PATH": f"{program('flink/bin').absolute()}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(root),
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(place),
        "FLINK_LOG_DIR": str(root / "log"),
        "JAVA_HOME": str(find_java().executable.resolve().parent.parent),
    }
    (root / "log").mkdir()
    cluster = Cluster(root, pki, identity, ports, environment)
    for name in ("jobmanager", "taskmanager"):
        argv: list[str | Path] = ["bash", home / "bin" / f"{name}.sh", "start-foreground"]
        stack.enter_context(running(argv, root / f"{name}.out", environment))
    context = client_context(identity)
    until(lambda: b'"taskmanagers":1,' in cluster.overview(context), cluster.logs, START_SECONDS)
    return cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Provide a session cluster that is configured exactly as exported."""
    with ExitStack() as stack:
        yield start(tmp_path_factory.mktemp("flink"), pinned=True, stack=stack)


def test_flink_runs_its_own_word_count_example(cluster: Cluster) -> None:
    """Flink's word count in Python: submitted by Flink's own command, and written to a file."""
    home = Path(cluster.environment["FLINK_HOME"])
    example, result = home / "examples" / "table" / "word_count.py", cluster.root / "result"
    python = program("flink/bin/python").absolute()
    done = subprocess.run(
        [
            *("bash", home / "bin" / "flink", "run", "-pyclientexec", python, "-pyexec", python),
            *("-py", example, "--output", result),
        ],
        env=cluster.environment,
        cwd=cluster.root,
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr + cluster.logs()
    assert "Job has been submitted with JobID" in done.stdout
    counted: dict[str, int] = {}
    for file in result.glob("part-*"):
        for line in file.read_text().splitlines():
            (row,) = json.loads(line)["data"]
            counted[row["word"]] = max(row["count"], counted.get(row["word"], 0))
    text = re.search(r"word_count_data = (\[.*?\n\s*.*?\])\n", example.read_text(), re.DOTALL)
    assert text is not None
    lines = re.findall(r'"(.*?)"', text[1])
    expected = Counter(word for line in lines for word in line.split())
    assert counted == expected
    assert sum(counted.values()) > 200


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("port", INTERNAL)
def test_no_internal_port_admits_a_hostile_peer(port: str, case: Hostile, cluster: Cluster) -> None:
    hostile = cluster.pki.hostile(case, pretending=FLINK)
    assert refuses(cluster.ports[port], hostile.client_context()), cluster.logs()


def test_internal_ports_accept_only_the_clusters_own_certificate_over_tls_1_3(cluster: Cluster) -> None:
    """The certificate is pinned by its fingerprint: others of the same authority are refused."""
    ports = list(cluster.listening().values())
    own = client_context(cluster.identity)
    assert let_in(ports, own) == ports
    own.maximum_version = ssl.TLSVersion.TLSv1_2
    other = client_context(cluster.pki.directory(OTHER))
    assert all(refuses(port, each) for port in ports for each in (own, other))


def test_the_rest_endpoint_answers_only_certificates_of_the_authority(cluster: Cluster) -> None:
    assert b"200 OK" in cluster.overview(client_context(cluster.pki.directory(OTHER)))
    for case in (*HOSTILE, Hostile.EXPIRED):
        assert cluster.overview(cluster.pki.hostile(case, pretending=FLINK).client_context()) == b"", case
    plain = exchange(cluster.ports["rest"], None, b"GET /overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"taskmanagers" not in plain


def test_internal_ports_admit_any_certificate_of_the_authority_without_a_fingerprint(tmp_path: Path) -> None:
    """As the comment in config.yaml says; certificates of other authorities are still refused."""
    with ExitStack() as stack:
        cluster = start(tmp_path, pinned=False, stack=stack)
        ports = list(cluster.listening().values())
        assert let_in(ports, client_context(cluster.pki.directory(OTHER))) == ports
        for case in (*HOSTILE, Hostile.EXPIRED):
            hostile = cluster.pki.hostile(case, pretending=FLINK)
            assert all(refuses(port, hostile.client_context()) for port in ports), case
