"""Access log lines in the audit log: complete, in order, and protected against unnoticed changes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.core.files.append_log import Disk
from sluice.gateway.audit_log import traffic as audit_traffic
from sluice.gateway.audit_log.chain import AccessPosition, AuditRecord
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.audit_log.traffic import MAX_TRAFFIC_BYTES, TrafficWriter
from sluice.gateway.audit_log.verification import read_records, verify_log
from sluice.gateway.errors import AuditLogError

NOWHERE = AccessPosition("", 0)


class Kept:
    """An audit log that takes over access lines, five at a time, in files of about 200 bytes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "current.jsonl"

    def open(self) -> AuditLog:
        log = AuditLog(self.path)
        log._traffic = TrafficWriter(self.directory, Disk(), file_bytes=200)
        return log

    def take(self, first: int, count: int = 5) -> None:
        log = self.open()
        lines = b"".join(b'{"path":"/%d"}\n' % number for number in range(first, first + count))
        before = log.position() or NOWHERE
        assert log.append_access_lines(lines, after=before, position=AccessPosition("f", before.offset + len(lines)))
        log.append(AuditRecord(event="decision", decision="allow"))
        log.close()

    def file(self, number: int) -> Path:
        return self.directory / f"traffic-{number:09}.jsonl"

    @property
    def paths(self) -> list[str]:
        return [each.path for each in read_records(self.directory) if each.event == "traffic"]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Forty lines in several files, the first of them compressed."""
    kept = Kept(tmp_path / "audit")
    for first in range(0, 40, 5):
        kept.take(first)
    log = kept.open()
    log.maintain()
    log.close()
    assert kept.file(1).with_name(kept.file(1).name + ".gz").exists()
    assert not kept.file(1).exists()
    assert kept.file(3).exists()
    return kept


def test_all_access_lines_are_kept_across_traffic_files(kept: Kept) -> None:
    assert kept.paths == [f"/{number}" for number in range(40)]
    assert verify_log(kept.directory).requests == 40
    assert max(each.stat().st_mode & 0o777 for each in kept.directory.glob("traffic-*")) == 0o600


def test_one_record_covers_all_access_lines_of_a_batch(kept: Kept) -> None:
    before = verify_log(kept.directory).state.count
    kept.take(40, 1000)
    assert verify_log(kept.directory).state.count - before <= 4, "the lines, the decision, and checkpoints"


def _packed(change: Callable[[bytes], bytes]) -> Callable[[Kept], None]:
    def run(kept: Kept) -> None:
        path = kept.file(1).with_name(kept.file(1).name + ".gz")
        path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))

    return run


def _plain(change: Callable[[bytes], bytes]) -> Callable[[Kept], None]:
    def run(kept: Kept) -> None:
        kept.file(3).write_bytes(change(kept.file(3).read_bytes()))

    return run


def _swap(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([lines[1], lines[0], *lines[2:]])


TAMPERED = {
    "a byte changed": (_plain(lambda data: data.replace(b"/3", b"/7", 1)), "other bytes"),
    "a byte changed in a compressed file": (_packed(lambda data: data.replace(b"/1", b"/2", 1)), "other bytes"),
    "a line removed": (_plain(lambda data: data[data.index(b"\n") + 1 :]), "ends before|other bytes"),
    "two lines swapped": (_plain(_swap), "other bytes"),
    "the end removed": (_plain(lambda data: data[:-1]), "ends before"),
    "added to a closed file": (_packed(lambda data: data + b'{"path":"/x"}\n'), "continues after"),
    "a file removed": (lambda kept: kept.file(3).unlink(), "missing"),
    "no gzip": (
        lambda kept: kept.file(1).with_name(kept.file(1).name + ".gz").write_bytes(b"nonsense"),
        "damaged",
    ),
}


@pytest.mark.parametrize("how", list(TAMPERED))
def test_changed_traffic_files_are_detected(kept: Kept, how: str) -> None:
    touch, message = TAMPERED[how]
    touch(kept)
    with pytest.raises(AuditLogError, match=message):
        verify_log(kept.directory)


def test_record_changed_to_name_other_bytes_is_detected(kept: Kept) -> None:
    """Pointing a record elsewhere requires writing the chain anew, which needs its key."""
    kept.path.write_bytes(kept.path.read_bytes().replace(b'"offset":0,"size"', b'"offset":1,"size"', 1))
    with pytest.raises(AuditLogError, match=r"other bytes|does not continue|does not follow"):
        verify_log(kept.directory)


@pytest.mark.parametrize("left", [b"x", b'{"path":"/torn', b'{"path":"/whole"}\n' * 9])
def test_lines_left_by_a_crash_without_a_record_are_cut_off(kept: Kept, left: bytes) -> None:
    last = max(kept.directory.glob("traffic-*.jsonl"))
    last.write_bytes(last.read_bytes() + left)
    verify_log(kept.directory)
    kept.take(40)
    kept.take(45)
    assert kept.paths == [f"/{number}" for number in range(50)]
    assert verify_log(kept.directory).requests == 50


def test_writer_refuses_traffic_files_whose_end_was_removed(kept: Kept) -> None:
    last = max(kept.directory.glob("traffic-*.jsonl"))
    last.write_bytes(last.read_bytes()[:-5])
    with pytest.raises(AuditLogError, match=r"bytes, and"):
        kept.take(40)
    last.unlink()
    with pytest.raises(AuditLogError, match="cannot write"):
        kept.take(40)


def test_full_disk_leaves_no_partial_batch(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def write(self, descriptor: int, data: bytes) -> int:
            return super().write(descriptor, data[: len(data) // 2])

    writer = TrafficWriter(tmp_path, FullDisk())
    with pytest.raises(AuditLogError, match="no space"):
        writer.append(b"line\n", "digest", after=None)
    assert (tmp_path / "traffic-000000001.jsonl").read_bytes() == b""


@pytest.mark.parametrize("size", [0, MAX_TRAFFIC_BYTES + 1])
def test_empty_and_oversized_batches_are_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(AuditLogError, match="at once"):
        TrafficWriter(tmp_path, Disk()).append(b"x" * size, "digest", after=None)


def test_record_that_claims_an_oversized_batch_is_refused(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_traffic, "MAX_TRAFFIC_BYTES", 10)
    with pytest.raises(AuditLogError, match="no writer left it so"):
        verify_log(kept.directory)
