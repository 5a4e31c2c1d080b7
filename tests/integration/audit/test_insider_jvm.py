"""The insider audit's code for JVMs.

It compiles, reaches whatever is not protected, and reports what refused it.
"""

from __future__ import annotations

import os
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

from sluice.audit.insider import packed
from sluice.audit.insider.payload.jvm import CLASS, SOURCE
from sluice.audit.insider.payload.world import World
from sluice.runtime.spark import find_java, find_spark

PAYLOAD = Path(packed.__code__.co_filename).parent / "payload"


@pytest.fixture(scope="module")
def insider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An instance of the audit's Java class in an unconfined JVM, created as the pipeline creates it."""
    spark = find_spark()
    [py4j] = spark.home.glob("jars/py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        classpath=spark.class_path,
        jarpath=str(py4j),
        java_path=str(find_java().executable),
        javaopts=[f"-Djava.io.tmpdir={tmp_path_factory.mktemp('jvm')}"],
        die_on_exit=True,
    )
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(17)
        compiler.cook((PAYLOAD / SOURCE).read_text())
        found = compiler.getClassLoader().loadClass(CLASS)
        no_types = gateway.new_array(gateway.jvm.java.lang.Class, 0)
        yield found.getDeclaredConstructor(no_types).newInstance(gateway.new_array(gateway.jvm.java.lang.Object, 0))
    finally:
        gateway.shutdown()


def _outcome(insider: Any, operation: str, *targets: object) -> str:
    answer: str = insider.attempt(operation, "\n".join(map(str, targets)))
    return answer.partition("\t")[0]


@pytest.mark.parametrize(
    "operation",
    ["read-nio", "read-map", "read-random", "read-url", "read-hadoop", "read-user", "read-program", "look-attributes",
     "look-link", "look-open", "write-open", "write-random", "write-touch", "write-mode"],
)  # fmt: skip
def test_each_file_operation_reaches_a_file_and_leaves_it_unchanged(
    insider: Any, tmp_path: Path, operation: str
) -> None:
    secret = tmp_path / "key.pem"
    secret.write_text("-----BEGIN PRIVATE KEY-----")
    secret.chmod(0o600)
    assert _outcome(insider, operation, tmp_path / "missing", secret) == "reached"
    assert _outcome(insider, operation, tmp_path / "missing") == "refused"
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]
    assert secret.read_text() == "-----BEGIN PRIVATE KEY-----"
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("operation", ["read-listing", "look-watch", "write-create", "write-hadoop", "write-jvmlog"])
def test_each_directory_operation_reaches_a_directory_and_leaves_it_unchanged(
    insider: Any, tmp_path: Path, operation: str
) -> None:
    assert _outcome(insider, operation, tmp_path) == "reached"
    assert _outcome(insider, operation, tmp_path / "missing") == "refused"
    assert not list(tmp_path.iterdir())


def test_the_content_of_a_read_file_is_not_reported(insider: Any, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("ab12cd34")
    assert "ab12" not in insider.attempt("read-nio", str(secret))


def test_a_pid_that_belongs_to_another_process_in_the_namespace_is_not_reached(insider: Any) -> None:
    assert "another process has that number" in insider.attempt("process-handle", "1")
    assert _outcome(insider, "process-environ", 1 << 22) == "refused"


@pytest.mark.parametrize(
    ("answer", "outcome"), [(b"HTTP/1.1 404 Not Found\r\n", "reached"), (b"\x15\x03\x01\x00\x02", "refused")]
)
def test_a_plaintext_attempt_counts_as_reached_only_if_the_answer_is_not_tls(
    insider: Any, answer: bytes, outcome: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert _outcome(insider, "tcp-plain", f"127.0.0.1:{listening.getsockname()[1]}") == outcome
        thread.join()


def test_a_listening_unix_socket_is_reached_and_a_missing_one_is_refused(insider: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "a.sock"))
        listening.listen()
        assert _outcome(insider, "unix-raw", tmp_path / "a.sock") == "reached"
    assert _outcome(insider, "unix-raw", tmp_path / "b.sock") == "refused"


def test_a_malformed_attempt_counts_as_untried(insider: Any) -> None:
    assert _outcome(insider, "spark-endpoint", "127.0.0.1:1") == "untried"
    assert _outcome(insider, "read-nonsense", os.devnull) == "untried"
    assert _outcome(insider, "tcp-own", "127.0.0.1:1") == "untried"


def test_the_java_source_is_in_the_insider_package(tmp_path: Path) -> None:
    names = zipfile.ZipFile(packed(World(), tmp_path).package).namelist()
    assert f"sluice_insider/{SOURCE}" in names
