"""Unsent rows survive the process that should have sent them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from sluice.runtime.egress import BoxId, Destination, EgressJournal, UnsentRows

BOX = BoxId("a" * 32, 1, "driver")
API = Destination("api.example.com", "", 443)
OTHER = Destination("", "192.0.2.1", 80)


def written(unsent: UnsentRows) -> None:
    """Wait until everything has been written."""
    unsent._writing.submit(lambda: None).result(30)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.fixture
def unsent(path: Path) -> UnsentRows:
    return UnsentRows(path)


def test_the_unsent_rows_of_a_killed_process_are_on_disk(unsent: UnsentRows, path: Path) -> None:
    journal = EgressJournal(unsent=unsent)
    journal.opened(BOX, API, end=lambda _: None)
    over = journal.opened(BOX, API, end=lambda _: None, measure=lambda: (7, 11))
    over.closed("idle")
    journal.refused(BOX, OTHER, "not_allowed", count=3)
    written(unsent)

    assert path.stat().st_mode & 0o777 == 0o600
    rows = UnsentRows(path).load()
    told = [(row.target, row.verdict.value, row.reason, row.count, row.bytes_up, row.open) for row in rows]
    assert told == [
        ("api.example.com:443", "allowed", "", 1, 0, False),
        ("api.example.com:443", "allowed", "idle", 1, 7, False),
        ("192.0.2.1:80", "refused", "not_allowed", 3, 0, False),
    ]


def test_recorded_rows_are_removed_from_disk(unsent: UnsentRows, path: Path) -> None:
    journal = EgressJournal(unsent=unsent)
    journal.refused(BOX, OTHER, "not_allowed")
    journal.settle(journal.report(last=True))
    written(unsent)
    assert not path.exists()

    journal.refused(BOX, OTHER, "not_allowed")
    written(unsent)
    assert len(UnsentRows(path).load()) == 1


def test_a_long_file_of_unsent_rows_is_compacted(path: Path) -> None:
    unsent = UnsentRows(path, compact_bytes=2000)
    journal = EgressJournal(unsent=unsent)
    journal.opened(BOX, API, end=lambda _: None)
    for port in range(1, 50):
        journal.refused(BOX, Destination("", "192.0.2.1", port), "not_allowed")
        written(unsent)
        journal.settle(journal.report(last=True))
    written(unsent)
    assert path.stat().st_size < 4000
    assert {row.host for row in UnsentRows(path).load()} >= {"api.example.com"}


def test_unreadable_lines_and_an_unwritable_file_of_unsent_rows_raise_no_error(path: Path, tmp_path: Path) -> None:
    assert UnsentRows(path).load() == ()
    whole = EgressJournal()
    whole.refused(BOX, OTHER, "not_allowed")
    (row,) = whole.left()
    path.write_bytes(msgspec.json.encode(row) + b'\n{"id": "no"}\n' + msgspec.json.encode(row)[:-20])
    assert UnsentRows(path).load() == (row,)

    nowhere = UnsentRows(tmp_path / "no" / "rows.jsonl")
    nowhere.add(row)
    nowhere.replace((row,))
    nowhere.close()
    nowhere.add(row)


def test_a_line_that_did_not_fit_on_the_disk_loses_no_other_row(
    unsent: UnsentRows, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = EgressJournal(unsent=unsent)
    journal.refused(BOX, OTHER, "first")
    written(unsent)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, line: write(fd, line[:20]))
        journal.refused(BOX, OTHER, "second")
        written(unsent)
    journal.refused(BOX, OTHER, "third")
    written(unsent)
    assert [row.reason for row in UnsentRows(path).load()] == ["first", "third"]


def test_a_line_cut_off_by_a_kill_loses_no_other_row(unsent: UnsentRows, path: Path) -> None:
    journal = EgressJournal(unsent=unsent)
    journal.refused(BOX, OTHER, "first")
    journal.refused(BOX, OTHER, "second")
    written(unsent)
    path.write_bytes(path.read_bytes()[:-20])

    after = UnsentRows(path)
    assert [row.reason for row in after.load()] == ["first"]
    EgressJournal(unsent=after).refused(BOX, OTHER, "third")
    written(after)
    assert "third" in {row.reason for row in UnsentRows(path).load()}
