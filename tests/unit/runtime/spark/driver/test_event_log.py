"""Spark's event log at the driver agent.

It is bounded and masked. Whatever the JVM sends, it is never more than a file of ours.
"""

from __future__ import annotations

import gzip
import io
import socket
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.masking import Masker
from sluice.runtime.spark.driver.event_log import (
    CUT,
    EVENT_LOG,
    MAX_LINE_BYTES,
    MAX_RATIO,
    EventLogReceiver,
    EventLogWriter,
)

TASK = b'{"Event":"SparkListenerTaskEnd","Stage ID":0,"x":"%s"}\n'
JOB = b'{"Event":"SparkListenerJobStart","Job ID":%d}\n'
LIMIT = 64 << 10


class Kept(io.BytesIO):
    """A file whose content remains available after it was closed."""

    content = b""

    def close(self) -> None:
        self.content = self.getvalue()
        super().close()


def noise(number: int, size: int = 500) -> bytes:
    """Text that cannot be compressed well."""
    return b"".join(b"%08x" % zlib.crc32(b"%d %d" % (number, at)) for at in range(size // 8))


def plain(data: bytes) -> bytes:
    """Decompress as much as there is; the end may be missing."""
    return zlib.decompressobj(31).decompress(data)


def test_a_small_event_log_is_kept_completely() -> None:
    file = Kept()
    writer = EventLogWriter(file, LIMIT)
    lines = [JOB % number for number in range(100)]
    for line in lines:
        writer.add(line)
    writer.close()
    assert not writer.cut
    assert gzip.decompress(file.content) == b"".join(lines)


def test_task_events_are_dropped_first_and_the_log_size_is_bounded() -> None:
    file = Kept()
    writer = EventLogWriter(file, LIMIT)
    for number in range(2000):
        writer.add(TASK % noise(number))
        if number % 100 == 0:
            writer.add(JOB % number)
    writer.close()
    assert writer.cut
    assert len(file.content) <= LIMIT + (32 << 10)  # what zlib holds back
    kept = gzip.decompress(file.content)
    assert kept.count(b"JobStart") == 20, "jobs are there although tasks are missing"
    assert 0 < kept.count(b"TaskEnd") < 2000


def test_a_highly_compressible_event_log_is_bounded_by_its_unpacked_size() -> None:
    file = Kept()
    writer = EventLogWriter(file, LIMIT)
    for _ in range(100):
        writer.add(b"0" * (1 << 20) + b"\n")
    writer.close()
    assert writer.full
    assert writer.cut
    assert len(gzip.decompress(file.content)) <= LIMIT * MAX_RATIO + (2 << 20)


def test_a_killed_agent_leaves_the_recently_flushed_event_log() -> None:
    now = [0.0]
    file = Kept()
    writer = EventLogWriter(file, LIMIT, lambda: now[0])
    writer.add(JOB % 1)
    now[0] = 10
    writer.add(JOB % 2)
    assert plain(file.getvalue()) == JOB % 1 + JOB % 2
    writer.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[EventLogReceiver]:
    made = EventLogReceiver(
        tmp_path / "events", tmp_path, LIMIT, lambda: Masker([("database", b"correct horse battery")])
    )
    made.start()
    yield made
    made.close()


def say(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.connect(str(path / "events"))
        try:
            jvm.sendall(data)
        except OSError:
            return  # it takes no more


def test_secrets_in_the_event_log_are_masked_and_its_file_is_private(
    receiver: EventLogReceiver, tmp_path: Path
) -> None:
    say(tmp_path, b'{"Event":"a","Description":"correct horse battery"}\n')
    receiver.close()
    log = tmp_path / EVENT_LOG
    assert gzip.decompress(log.read_bytes()) == b'{"Event":"a","Description":"[secret database]"}\n'
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert not (tmp_path / CUT).exists()
    assert not (tmp_path / "events").exists()


def test_the_event_log_of_the_latest_spark_context_is_kept(receiver: EventLogReceiver, tmp_path: Path) -> None:
    say(tmp_path, JOB % 1 + b"half a li")
    say(tmp_path, JOB % 2)
    receiver.close()
    assert gzip.decompress((tmp_path / EVENT_LOG).read_bytes()) == JOB % 2
    assert not (tmp_path / CUT).exists()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(JOB % 1 + b"x" * (2 * MAX_LINE_BYTES) + b"\n" + JOB % 2, id="a line that is too long"),
        pytest.param(JOB % 1 + JOB % 2 + b'{"Event":"SparkListener', id="a JVM that was killed"),
    ],
)
def test_incomplete_and_overlong_lines_are_left_out_of_the_event_log(
    receiver: EventLogReceiver, tmp_path: Path, said: bytes
) -> None:
    say(tmp_path, said)
    receiver.close()
    assert gzip.decompress((tmp_path / EVENT_LOG).read_bytes()) == JOB % 1 + JOB % 2
    assert (tmp_path / CUT).exists()


def test_an_event_log_over_the_limit_is_cut_at_a_line_end(receiver: EventLogReceiver, tmp_path: Path) -> None:
    say(tmp_path, b"".join(JOB.replace(b"%d", noise(number)) for number in range(5000)))
    receiver.close()
    assert (tmp_path / CUT).exists()
    assert (tmp_path / EVENT_LOG).stat().st_size < 2 * LIMIT
    assert gzip.decompress((tmp_path / EVENT_LOG).read_bytes()).endswith(b"\n")


def test_without_a_spark_context_there_is_no_log(receiver: EventLogReceiver, tmp_path: Path) -> None:
    receiver.close()
    assert list(tmp_path.iterdir()) == []
