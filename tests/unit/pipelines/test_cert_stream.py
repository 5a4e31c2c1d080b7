"""The bundled streaming pipeline without Spark: what it reads from a file, and repeated batches."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sluice.pipelines.cert_stream import (
    COLUMNS,
    MAX_FILE_BYTES,
    certificates_of,
    store_batch,
)
from tests.system.streaming.certificates import Incoming, in_database


@pytest.fixture
def pem(tmp_path: Path) -> bytes:
    """The content of a file with two certificates."""
    Incoming(tmp_path / "incoming").add()
    return (tmp_path / "incoming" / "0001.pem").read_bytes()


def rows(path: str, content: bytes) -> list[tuple[str, ...]]:
    """Return the rows of a file in the form in which Spark delivers them."""
    return [tuple(row[name] for name in COLUMNS) for row in certificates_of(path, content)]


def test_each_certificate_of_a_file_is_a_row(pem: bytes) -> None:
    first, second = certificates_of("a.pem", pem)
    assert (first["subject"], first["issuer"], first["serial"]) == ("CN=host-2", "CN=authority-2", "2")
    assert first["not_after"] == "2026-01-03T00:00:00+00:00"
    assert first["fingerprint"] != second["fingerprint"]
    assert not first["error"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"no certificate", "not a PEM file"),
        (b"", "not a PEM file"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not a PEM file"),
        (b"x" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
    ids=["text", "empty", "damaged", "too large"],
)
def test_a_file_without_readable_certificates_becomes_one_error_row(content: bytes, error: str) -> None:
    (row,) = certificates_of("a.pem", content)
    assert error in row["error"]
    assert row["file"] == "a.pem"


def test_a_batch_that_comes_twice_is_stored_once(tmp_path: Path, pem: bytes) -> None:
    database = tmp_path / "expiry.db"
    assert store_batch(database, "query", 0, rows("a.pem", pem))
    assert not store_batch(database, "query", 0, rows("a.pem", pem))
    assert len(in_database(database)) == 2
    assert store_batch(database, "query", 1, rows("b.pem", pem))
    assert store_batch(database, "another query", 0, rows("c.pem", pem))
    assert len(in_database(database)) == 6


def test_a_batch_is_stored_wholly_or_not_at_all(tmp_path: Path, pem: bytes) -> None:
    database = tmp_path / "expiry.db"
    good = rows("a.pem", pem)
    with pytest.raises(sqlite3.Error):
        store_batch(database, "query", 0, [*good, good[0][:-1]])
    assert in_database(database) == []
    assert store_batch(database, "query", 0, good)
    assert len(in_database(database)) == 2
