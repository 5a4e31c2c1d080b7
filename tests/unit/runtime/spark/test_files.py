"""What lies on disk around a driver: spec, private directories, gateway address, evidence, fetched files."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from sluice.core.errors import SluiceError, StoreError
from sluice.runtime.messages import ConnectionEvidence, Evidence
from sluice.runtime.node.evidence import MAX_EVIDENCE_ENTRIES, merge
from sluice.runtime.node.leader_finder import LeaderDiscovery
from sluice.runtime.sandbox import Trial
from sluice.runtime.spark.driver.program.program import safe_name
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.spark.errors import DriverFailed, SparkError
from sluice.runtime.spark.evidence import (
    EARLIER_FILE,
    EVIDENCE_FILE,
    MAX_EVIDENCE_LINES,
    MAX_LINE_BYTES,
    read_evidence,
)
from sluice.runtime.spark.java import Java, SparkDistribution
from sluice.runtime.spark.jvm.command import SparkRuntime, TlsEngine
from sluice.runtime.spark.jvm.gateway_port import MAX_GATEWAY_SECRET_BYTES, Gateway, read_gateway
from sluice.runtime.spark.jvm.tempdir import MAX_TEMP_DIRECTORY_BYTES, make_temp_dir, remove_temp_dir

TOKEN = b"\x01\x02fencing"
SPEC = DriverSpec(
    job_id="0" * 32, attempt=1, name="n", trust_domain="td", leader=LeaderDiscovery(home="/h"),
    jobmaster_token=TOKEN.hex(), identity_dir="/i", work_dir="/w", reports_dir="/r", log_dir="/l",
)  # fmt: skip
LINE = (
    b'{"channel":"data","local":"spiffe://td/a","peer":"spiffe://td/b","direction":"dialed",'
    b'"protocol":"TLSv1.3","cipher":"TLS_AES_128_GCM_SHA256","opened_at":1.5}\n'
)


def test_a_driver_spec_survives_writing_and_reading_and_is_private(tmp_path: Path) -> None:
    path = SPEC.write(tmp_path / "spec.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert DriverSpec.read(path) == SPEC
    assert SPEC.token == TOKEN


def test_a_driver_spec_carries_the_spark_runtime_found_by_the_taskmanager(tmp_path: Path) -> None:
    spark = SparkRuntime(
        Java(Path("/usr/bin/java"), 17, "build"),
        SparkDistribution(Path("/spark"), "4.3.0", (Path("/spark/a.jar"), Path("/spark/b.jar"))),
        Path("/cache/plugin.jar"),
        TlsEngine.OPENSSL,
        Path("/cache/classes.jsa"),
    )
    spec = msgspec.structs.replace(SPEC, spark=spark, trial=Trial(bwrap="/usr/bin/bwrap", own_uids=True))

    assert DriverSpec.read(spec.write(tmp_path / "spec.json")) == spec


@pytest.mark.parametrize("told", [b"", b"begin", b"x" * 10_000])
def test_a_driver_agent_that_receives_no_spec_exits(told: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sluice.runtime.spark.driver.main", "spec.json"],
        input=told,
        capture_output=True,
        check=False,
    )

    assert ended.returncode == 1
    assert b"cancelled this driver before its start" in ended.stderr


def test_spec_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = SPEC.write(tmp_path / "spec.json")
    path.chmod(0o644)
    with pytest.raises(StoreError):
        DriverSpec.read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        msgspec.json.encode({**msgspec.to_builtins(SPEC), "more": 1}),
        msgspec.json.encode({**msgspec.to_builtins(SPEC), "jobmaster_token": "no hex"}),
        msgspec.json.encode({**msgspec.to_builtins(SPEC), "attempt": "1"}),
    ],
)
def test_a_malformed_driver_spec_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(DriverFailed):
        DriverSpec.read(path)


class TestTempDir:
    """Short private directories."""

    def test_a_temporary_directory_is_private_short_and_removable(self) -> None:
        path = make_temp_dir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert len(os.fsencode(path)) <= MAX_TEMP_DIRECTORY_BYTES
        (path / "file").touch()
        remove_temp_dir(path)
        assert not path.exists()

    def test_a_parent_path_too_long_for_a_temporary_directory_is_refused(self, tmp_path: Path) -> None:
        parent = tmp_path / ("x" * MAX_TEMP_DIRECTORY_BYTES)
        parent.mkdir()
        with pytest.raises(SparkError, match="too long"):
            make_temp_dir(parent)
        assert list(parent.iterdir()) == []

    def test_only_temporary_directories_of_dead_processes_are_removed(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        base = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # short, wherever TMPDIR is: two levels must fit
        dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        stale = base / f"sluice-jvm-{int(dead.stdout)}-abc"
        others = [base / f"sluice-jvm-{os.getpid()}-abc", base / "sluice-jvm-x-abc", base / "sluice-0-abc"]
        for path in (stale, *others):
            path.mkdir()
        link = base / f"sluice-jvm-{int(dead.stdout)}-link"
        target = tmp_path_factory.mktemp("target")
        link.symlink_to(target)
        made = make_temp_dir(base)
        assert not stale.exists()
        assert all(path.exists() for path in others)
        assert target.exists()
        remove_temp_dir(made)
        shutil.rmtree(base)


class TestGateway:
    """The file that Spark's gateway server writes for Python."""

    def test_a_gateway_address_is_decoded(self) -> None:
        assert read_gateway(struct.pack(">ii", 4242, 6) + b"secret") == Gateway(4242, "secret")

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\0" * 7,
            struct.pack(">ii", 0, 1) + b"s",
            struct.pack(">ii", 70000, 1) + b"s",
            struct.pack(">ii", 4242, 0),
            struct.pack(">ii", 4242, 9) + b"short",
            struct.pack(">ii", 4242, MAX_GATEWAY_SECRET_BYTES + 1) + b"s" * (MAX_GATEWAY_SECRET_BYTES + 1),
        ],
    )
    def test_a_malformed_gateway_address_is_refused(self, data: bytes) -> None:
        with pytest.raises(DriverFailed):
            read_gateway(data)

    def test_the_repr_of_a_gateway_does_not_show_its_secret(self) -> None:
        assert "hunter2" not in repr(Gateway(1, "hunter2"))


class TestEvidence:
    """The evidence of its connections that a JVM recorded."""

    def test_without_an_evidence_file_there_is_no_evidence(self, tmp_path: Path) -> None:
        assert read_evidence(tmp_path) == Evidence()

    def test_complete_lines_of_evidence_are_read(self, tmp_path: Path) -> None:
        (tmp_path / EVIDENCE_FILE).write_bytes(LINE * 2 + LINE[:30])
        found = read_evidence(tmp_path).connections
        assert len(found) == 2
        assert (found[0].peer, found[0].protocol, found[0].opened_at) == ("spiffe://td/b", "TLSv1.3", 1.5)

    def test_a_malformed_line_of_evidence_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / EVIDENCE_FILE).write_bytes(b"\xff\n{}\n" + LINE + b'{"channel": 7}\n')
        assert len(read_evidence(tmp_path).connections) == 1

    def test_a_line_longer_than_any_record_is_left_out(self, tmp_path: Path) -> None:
        """The evidence of ended executors stays in memory, so a job must not choose its size."""
        overlong = LINE.replace(b"spiffe://td/b", b"spiffe://td/" + b"b" * MAX_LINE_BYTES)
        (tmp_path / EVIDENCE_FILE).write_bytes(overlong + LINE)
        assert [each.peer for each in read_evidence(tmp_path).connections] == ["spiffe://td/b"]

    def test_the_latest_lines_of_evidence_are_kept_and_the_others_counted(self, tmp_path: Path) -> None:
        (tmp_path / EVIDENCE_FILE).write_bytes(b"".join(_line(at) for at in range(MAX_EVIDENCE_LINES + 5)))
        found = read_evidence(tmp_path)
        assert (len(found.connections), found.dropped) == (MAX_EVIDENCE_LINES, 5)
        assert found.connections[-1].opened_at == MAX_EVIDENCE_LINES + 4

    def test_evidence_is_read_from_the_earlier_and_the_present_file(self, tmp_path: Path) -> None:
        """3,000 connections came before the present file; the earlier file holds the last 1,000 of them."""
        (tmp_path / EARLIER_FILE).write_bytes(b'{"before":2000}\n' + b"".join(_line(at) for at in range(2000, 3000)))
        (tmp_path / EVIDENCE_FILE).write_bytes(b'{"before":3000}\n' + b"".join(_line(at) for at in (3000, 3001)))
        found = read_evidence(tmp_path)
        assert [each.opened_at for each in found.connections] == list(range(2002, 3002))
        assert found.dropped == 2002

    def test_only_the_end_of_a_huge_evidence_file_is_read(self, tmp_path: Path) -> None:
        with (tmp_path / EVIDENCE_FILE).open("wb") as file:
            file.truncate(1 << 40)
            file.seek(0, os.SEEK_END)
            file.write(b"\n" + LINE)
        assert len(read_evidence(tmp_path).connections) == 1

    @pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
    def test_an_evidence_path_that_is_not_a_regular_file_is_ignored_without_blocking(
        self, tmp_path: Path, put: Callable[[Path], None]
    ) -> None:
        put(tmp_path / EVIDENCE_FILE)
        assert read_evidence(tmp_path) == Evidence()

    def test_evidence_in_a_linked_directory_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "others").mkdir()
        (tmp_path / "others" / EVIDENCE_FILE).write_bytes(LINE)
        (tmp_path / "reports").symlink_to(tmp_path / "others")
        assert read_evidence(tmp_path / "reports") == Evidence()


def _line(at: int) -> bytes:
    return LINE.replace(b"1.5", str(at).encode())


def test_merged_evidence_keeps_only_the_latest_connections() -> None:
    entry = msgspec.json.decode(LINE, type=ConnectionEvidence)
    entries = [msgspec.structs.replace(entry, opened_at=float(at)) for at in range(MAX_EVIDENCE_ENTRIES + 10)]
    merged = merge(Evidence(tuple(entries[500:]), dropped=7), Evidence(tuple(entries[:700])))
    assert merged.dropped == 7 + 10
    assert merged.connections == tuple(entries[10:])


@pytest.mark.parametrize("name", ["pipeline.py", "my data (1).csv", "ä.txt"])
def test_a_plain_file_name_is_accepted(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc/passwd", "a/b", ".bashrc", "a,b", "a\nb", "x" * 201])
def test_an_unsafe_file_name_is_refused(name: str) -> None:
    with pytest.raises(SluiceError):
        safe_name(name)
