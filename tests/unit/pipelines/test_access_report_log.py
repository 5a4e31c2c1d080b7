"""The access report accepts a log exactly when the gateway's own verification does."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.core.errors import SluiceError
from sluice.gateway.audit_log.access_lines import MALFORMED
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.audit_log.segments import CURRENT
from sluice.gateway.audit_log.verification import verify_log
from sluice.pipelines import access_report as report
from sluice.pipelines.access_report import LogError
from tests.unit.gateway.audit_log.test_audit_traffic import TAMPERED, Kept
from tests.unit.gateway.audit_log.test_audit_verify import HARM, write_log


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log") / "audit"
    write_log(directory)
    return directory


@pytest.fixture
def log(written: Path, tmp_path: Path) -> Path:
    """A copy of the log that the test may damage."""
    return shutil.copytree(written, tmp_path / "audit")


def prove(directory: Path, key: Path | None = None, key_id: str = "", kept: tuple[Path, ...] = ()) -> int:
    """Verify a log as the job does, without Spark; return the number of lines."""
    log = report.open_log(directory, key, key_id, kept)
    aside = dict(report.kept_checkpoint(line, log.key_pem) for line in log.kept)
    proofs = [report.prove(source, log.key_pem, frozenset(aside)) for source in log.sources]
    lines = report.link(proofs, log.sources, aside)
    records = (report.parse_line(line) for source in log.sources for line in report.lines_of(source))
    batches = [report.batch_of(record, directory) for record in records if record and record["event"] == "access"]
    report.link_traffic(list(report.prove_traffic(iter(batches))))
    return lines


def test_an_intact_log_is_verified_with_all_its_lines(log: Path) -> None:
    assert prove(log) == verify_log(log).state.count
    assert len(report.find_segments(log)) >= 4


def test_lines_of_the_access_log_are_rows(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "audit")
    for first in range(0, 40, 5):
        kept.take(first)
    assert prove(kept.directory) == verify_log(kept.directory).state.count
    data = b'{"principal":"ada","decision":"denied","status":"403","time":"2026-03-01T00:00:00Z"}\n{"status":404}\nx\n'
    rows = list(report.rows_of(report.Batch("", 1, 0, len(data), "", 7, "2026-03-01T00:00:01Z"), data))
    assert [(each.event, each.principal, each.refused, each.sequence) for each in rows] == [
        ("traffic", "ada", True, 7),
        ("traffic", "", True, 7),
        ("traffic", "", False, 7),
    ]
    assert rows[0].at + 1 == rows[1].at
    assert rows[2].reason == MALFORMED


@pytest.mark.parametrize("how", list(TAMPERED))
def test_damage_to_the_access_log_is_detected(tmp_path: Path, how: str) -> None:
    kept = Kept(tmp_path / "audit")
    for first in range(0, 40, 5):
        kept.take(first)
    log = kept.open()
    log.maintain()
    log.close()
    TAMPERED[how][0](kept)
    with pytest.raises(LogError):
        prove(kept.directory)


@pytest.mark.parametrize("harm", [pytest.param(each.values[0], id=each.id) for each in HARM])
def test_damage_to_the_audit_log_is_detected_by_the_report_and_the_gateway(
    log: Path, harm: Callable[[Path], object]
) -> None:
    harm(log)
    with pytest.raises(SluiceError):
        verify_log(log)
    with pytest.raises(LogError):
        prove(log)


def test_a_log_with_another_key_or_an_unknown_checkpoint_is_refused(log: Path, tmp_path: Path) -> None:
    key_id = verify_log(log).key
    kept = tmp_path / "kept.json"
    shutil.copy(log / report.CHECKPOINT, kept)
    assert prove(log, key_id=key_id, kept=(kept,))
    with pytest.raises(LogError, match="has id"):
        prove(log, key_id="0" * 32)
    shutil.rmtree(log)
    write_log(log)
    with pytest.raises(LogError, match="not one that this log's key has signed"):
        prove(log, kept=(kept,))


def test_lines_written_after_opening_the_log_are_not_counted(log: Path) -> None:
    listed = report.open_log(log, None, "", ())
    before = verify_log(log).state.count
    writer = AuditLog(log / CURRENT)
    writer.event("login", "ada")
    writer.close()
    proofs = [report.prove(source, listed.key_pem, frozenset()) for source in listed.sources]
    assert report.link(proofs, listed.sources, {}) == before


def test_a_segment_that_is_compressed_meanwhile_is_still_read(log: Path) -> None:
    sources = report.find_segments(log)
    source = [each for each in sources if each.first > 0][-1]
    plain = Path(source.path)
    before = list(report.lines_of(source))
    plain.with_name(plain.name + ".gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert list(report.lines_of(source)) == before


def test_a_segment_that_exists_plain_and_compressed_is_counted_once(log: Path) -> None:
    (packed, *_) = (each for each in log.iterdir() if each.name.endswith(".gz"))
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    assert prove(log) == verify_log(log).state.count


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_a_missing_log_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError):
        report.open_log(tmp_path / name, None, "", ())


def test_segment_that_holds_too_much_is_not_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_SEGMENT_BYTES", 1000)
    with pytest.raises(LogError, match="holds more than"):
        prove(log)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"decision": "deny", "status": 401}, True),
        ({"decision": "allow", "status": 200}, False),
        ({"decision": "allow", "status": 503}, False),
        ({"decision": "", "status": 404}, True),
        ({"decision": "", "status": 0}, False),
        ({"status": "404"}, False),
        ({}, False),
    ],
)
def test_a_denial_or_an_undecided_request_with_an_error_status_is_a_refusal(
    record: dict[str, object], expected: bool
) -> None:
    assert report.row_of({"sequence": 1, "event": "traffic", **record}).refused is expected


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-03-01T12:00:00.000Z", 1772366400),
        ("2026-03-01T12:00:00", 1772366400),
        ("2026-03-01T14:00:00+02:00", 1772366400),
        ("yesterday", 60),
        ("9999-12-31T23:59:59-23:59", 60),
        ("0001-01-01T00:00:00+23:59", 60),
        (7, 60),
        (None, 60),
    ],
)
def test_the_request_time_is_the_proxys_if_valid_and_else_the_record_time(at: object, expected: int) -> None:
    """The proxy's time if it is valid; otherwise the time at which the record was written."""
    row = report.row_of({"sequence": 1, "event": "traffic", "time": "1970-01-01T00:01:00Z", "at": at})
    assert row.at == expected


def test_hostile_text_in_a_record_is_sanitized_and_shortened() -> None:
    row = report.row_of({"sequence": 1, "event": "decision", "principal": "a\x1b[2J\n" + "b" * 500, "reason": {"a": 1}})
    assert row.principal.isprintable()
    assert len(row.principal) == report.MAX_TEXT
    assert row.reason == ""
