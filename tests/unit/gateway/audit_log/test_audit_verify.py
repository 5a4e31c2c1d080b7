"""Verification finds any damage to the files of an audit log, and its message names the place."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.core.errors import SluiceError
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.keys import SIGNING_KEY, VERIFICATION_KEY, VerificationKey
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits
from sluice.gateway.audit_log.segments import CHECKPOINT, CURRENT, segments
from sluice.gateway.audit_log.verification import verify_log
from sluice.gateway.errors import AuditLogError

RECORDS = 40


def write_log(directory: Path, records: int = RECORDS) -> None:
    """Write a log of several segments.

    The first one is compressed; the current one has a few unsigned records.
    """
    log = AuditLog(directory / CURRENT, limits=AuditLogLimits(checkpoint_records=5, segment_bytes=3500))
    for number in range(records):
        log.append(AuditRecord(event="decision", path=f"/{number}", decision="allow", status=200))
        if number == records // 3:
            log.maintain()
    log.close()
    log = AuditLog(directory / CURRENT, limits=AuditLogLimits(checkpoint_records=5))
    for number in range(7):
        log.append(AuditRecord(event="decision", path=f"/more/{number}", decision="allow", status=200))
    log.close()
    log = AuditLog(directory / CURRENT, limits=AuditLogLimits(checkpoint_records=5))
    log.append(AuditRecord(event="decision", path="/unsigned", decision="deny", status=403))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log") / "audit"
    write_log(directory)
    return directory


@pytest.fixture
def log(written: Path, tmp_path: Path) -> Path:
    """A copy of the log that the test may damage."""
    return shutil.copytree(written, tmp_path / "audit")


def edit(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    """Return a function that changes the lines of the current segment."""

    def do(directory: Path) -> None:
        path = directory / CURRENT
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return do


def edit_closed(number: int, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a function that changes a closed segment, compressed or not."""

    def do(directory: Path) -> None:
        segment = segments(directory)[number]
        if segment.compressed.exists():
            segment.compressed.write_bytes(gzip.compress(change(gzip.decompress(segment.compressed.read_bytes()))))
        else:
            segment.path.write_bytes(change(segment.path.read_bytes()))

    return do


def remove_closed(number: int) -> Callable[[Path], None]:
    def do(directory: Path) -> None:
        segment = segments(directory)[number]
        (segment.compressed if segment.compressed.exists() else segment.path).unlink()

    return do


def remove_last_segments(directory: Path) -> None:
    (directory / CURRENT).unlink()
    remove_closed(-1)(directory)


def damage_packed(directory: Path) -> None:
    path = segments(directory)[0].compressed
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut_packed(directory: Path) -> None:
    path = segments(directory)[0].compressed
    path.write_bytes(path.read_bytes()[:-20])


def bomb(directory: Path) -> None:
    segments(directory)[0].compressed.write_bytes(gzip.compress(b"\0" * (1 << 20)))


def rename_closed(directory: Path) -> None:
    last = segments(directory)[-1]
    last.path.rename(last.path.with_name(f"audit-{last.first + 1:012}-{last.last:012}.jsonl"))


def other_log(directory: Path) -> None:
    """Replace the log by an intact one with another key, but keep the public key and stored checkpoint."""
    kept = {name: (directory / name).read_bytes() for name in (VERIFICATION_KEY, CHECKPOINT)}
    shutil.rmtree(directory)
    write_log(directory)
    for name, data in kept.items():
        (directory / name).write_bytes(data)


def forged_with_the_same_key(directory: Path) -> None:
    """Rewrite the whole log with the real key.

    Only the checkpoint stored before reveals the forgery.
    """
    key, kept = ((directory / name).read_bytes() for name in (SIGNING_KEY, CHECKPOINT))
    shutil.rmtree(directory)
    directory.mkdir(mode=0o700)
    (directory / SIGNING_KEY).write_bytes(key)
    (directory / SIGNING_KEY).chmod(0o600)
    write_log(directory)
    (directory / CHECKPOINT).write_bytes(kept)


HARM = [
    pytest.param(edit(lambda lines: lines[1:]), "lines before it were removed", id="first line of the segment"),
    pytest.param(edit(lambda lines: [lines[0], *lines[2:]]), "line [0-9]+ does not follow", id="a line removed"),
    pytest.param(
        edit(lambda lines: [lines[0].replace(b"allow", b"deny"), *lines[1:]]), "does not follow", id="a line changed"
    ),
    pytest.param(edit(lambda lines: [lines[1], lines[0], *lines[2:]]), "does not follow", id="two lines swapped"),
    pytest.param(edit(lambda lines: lines[:-2]), "line [0-9]+ was signed", id="end cut off before a checkpoint"),
    pytest.param(edit(lambda lines: lines[:0]), "ends at line [0-9]+, but line", id="current segment emptied"),
    pytest.param(lambda directory: (directory / CURRENT).unlink(), "was signed at", id="current segment removed"),
    pytest.param(remove_last_segments, "was signed at", id="last segments removed"),
    pytest.param(remove_closed(0), "lines 1 to [0-9]+ are missing", id="first segment removed"),
    pytest.param(remove_closed(1), "lines [0-9]+ to [0-9]+ are missing", id="a segment removed"),
    pytest.param(remove_closed(-1), "line [0-9]+ does not follow", id="last closed segment removed"),
    pytest.param(edit_closed(0, lambda data: data.replace(b'"/3"', b'"/4"')), "line 6 does", id="in a compressed one"),
    pytest.param(
        edit_closed(1, lambda data: data[: data.rindex(b"\n", 0, -1) + 1]), "its end was removed", id="end of a segment"
    ),
    pytest.param(
        edit_closed(-1, lambda data: data + data.splitlines(keepends=True)[-1]), "does not follow", id="line added"
    ),
    pytest.param(rename_closed, "are missing|begins before", id="segment renamed"),
    pytest.param(damage_packed, "audit log (line|segment)", id="compressed segment damaged"),
    pytest.param(cut_packed, "is damaged|its end was removed", id="compressed segment cut"),
    pytest.param(bomb, "line 1 is damaged", id="compressed segment with an endless line"),
    pytest.param(other_log, "has not signed", id="another log"),
    pytest.param(forged_with_the_same_key, "is not the checkpoint that was kept", id="written anew with the key"),
    pytest.param(
        lambda directory: (directory / CHECKPOINT).write_bytes((directory / CHECKPOINT).read_bytes()[:-9]),
        "not one that this log's key has signed",
        id="kept checkpoint changed",
    ),
]


def test_unchanged_log_is_verified(log: Path) -> None:
    proved = verify_log(log)
    assert proved.state.count > RECORDS
    assert proved.unsigned == 1
    assert proved.segments == len(segments(log)) >= 3
    assert proved.cut_short == 0
    assert proved.checkpoint is not None
    assert proved.key == VerificationKey.read(log / VERIFICATION_KEY).id


@pytest.mark.parametrize(("harm", "told"), HARM)
def test_every_kind_of_tampering_is_detected(log: Path, harm: Callable[[Path], object], told: str) -> None:
    harm(log)
    with pytest.raises(AuditLogError, match=told):
        verify_log(log)


def test_removal_of_any_single_line_is_detected(log: Path) -> None:
    """Removing any one line of the current segment is detected, except the unsigned last one."""
    lines = (log / CURRENT).read_bytes().splitlines(keepends=True)
    for number in range(len(lines) - 1):
        (log / CURRENT).write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        with pytest.raises(AuditLogError):
            verify_log(log)


def test_removal_of_the_unsigned_last_record_is_not_detected(log: Path) -> None:
    lines = (log / CURRENT).read_bytes().splitlines(keepends=True)
    (log / CURRENT).write_bytes(b"".join(lines[:-1]))
    assert verify_log(log).unsigned == 0


def test_incomplete_last_line_is_reported_but_accepted(log: Path) -> None:
    with (log / CURRENT).open("ab") as file:
        file.write(b'{"event":"dec')
    assert verify_log(log).cut_short == 13


def test_checkpoint_kept_elsewhere_detects_a_truncation_that_also_removed_the_checkpoint(log: Path) -> None:
    kept = log.parent / "kept.json"
    shutil.copy(log / CHECKPOINT, kept)
    edit(lambda lines: lines[:-2])(log)
    (log / CHECKPOINT).unlink()
    verify_log(log)
    with pytest.raises(AuditLogError, match="was signed at"):
        verify_log(log, checkpoints=[kept])


def test_pinned_key_detects_a_completely_replaced_log(log: Path, tmp_path: Path) -> None:
    """An attacker replaces log, key and checkpoint alike."""
    good = VerificationKey.read(log / VERIFICATION_KEY).id
    mine = shutil.copy(log / VERIFICATION_KEY, tmp_path / "pinned.pem")
    verify_log(log, key_id=good)
    verify_log(log, key=Path(mine))
    shutil.rmtree(log)
    write_log(log)
    verify_log(log)
    with pytest.raises(AuditLogError, match="another key"):
        verify_log(log, key_id=good)
    with pytest.raises(AuditLogError, match="not one that this log's key has signed"):
        verify_log(log, key=Path(mine))


def test_directory_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SluiceError, match="cannot read"):
        verify_log(tmp_path)
    (tmp_path / VERIFICATION_KEY).write_bytes(b"not a key")
    with pytest.raises(AuditLogError, match="not a public key"):
        verify_log(tmp_path)


def test_read_only_copy_without_the_lock_is_verified(log: Path) -> None:
    (log / "lock").unlink()
    (log / SIGNING_KEY).unlink()
    verify_log(log)
