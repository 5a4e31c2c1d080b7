"""Watches a directory for PEM files and maintains a list of all certificates in them.

A Structured Streaming pipeline with two queries over the same input, each with exactly-once output:

- ``certificates`` appends one JSON line per certificate (a file sink; readers must respect its ``_spark_metadata``);
- ``expiry`` maintains a SQLite database with one row per certificate and the number of certificates of each issuer, for
  example to query what expires next. Each batch is one transaction that also records the batch number, so a repeated
  batch has no effect.

A file is read as soon as it has its final name: write it elsewhere first, then rename it. A file that is not PEM, or a
certificate that cannot be read, results in a row with an error. Runs on any Spark 4:

    sluice submit cert_stream.py -- --input /srv/incoming --output /srv/certificates --database /srv/certificates.db

On Sluice, the queries continue after the last committed batch if driver, TaskManager or JobManager are lost. Elsewhere
set ``spark.sql.streaming.checkpointLocation``. With ``--once`` the pipeline ends when it has read all existing files.

This file is self-contained: it needs only pyspark, pyarrow and cryptography.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from pathlib import Path

import pyarrow as pa
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

MAX_FILE_BYTES = 4 << 20
"""Maximum size of an input file. A larger file gives a row with an error."""
MAX_CERTIFICATES_PER_FILE = 10_000
MAX_NAME_CHARACTERS = 500
DATABASE_WAIT_SECONDS = 30.0

SCHEMA = "file string, fingerprint string, subject string, issuer string, serial string, not_after string, error string"
COLUMNS = [each.split()[0] for each in SCHEMA.split(", ")]
ARROW_SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])
INPUT_SCHEMA = "path string, modificationTime timestamp, length long, content binary"

TABLES = """
CREATE TABLE IF NOT EXISTS batches (query TEXT NOT NULL, batch INTEGER NOT NULL, PRIMARY KEY (query, batch));
CREATE TABLE IF NOT EXISTS certificates (
    file TEXT NOT NULL, fingerprint TEXT NOT NULL, subject TEXT, issuer TEXT, serial TEXT, not_after TEXT, error TEXT
);
CREATE TABLE IF NOT EXISTS issuers (issuer TEXT PRIMARY KEY, certificates INTEGER NOT NULL);
"""


def certificates_of(path: str, content: bytes) -> list[dict[str, str]]:
    """The rows of one file. A file that cannot be read gives a single row with ``error``."""
    empty = dict.fromkeys(COLUMNS, "") | {"file": path}
    if len(content) > MAX_FILE_BYTES:
        return [empty | {"error": f"larger than {MAX_FILE_BYTES} bytes"}]
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        return [empty | {"error": f"not a PEM file with certificates: {error}"[:MAX_NAME_CHARACTERS]}]
    return [_row(path, each) for each in found[:MAX_CERTIFICATES_PER_FILE]]


def _row(path: str, certificate: x509.Certificate) -> dict[str, str]:
    row = dict.fromkeys(COLUMNS, "") | {"file": path, "fingerprint": certificate.fingerprint(hashes.SHA256()).hex()}
    try:
        return row | {
            "subject": certificate.subject.rfc4514_string()[:MAX_NAME_CHARACTERS],
            "issuer": certificate.issuer.rfc4514_string()[:MAX_NAME_CHARACTERS],
            "serial": f"{certificate.serial_number:x}",
            "not_after": certificate.not_valid_after_utc.astimezone(UTC).isoformat(),
        }
    except ValueError as error:
        return row | {"error": f"cannot be read: {error}"[:MAX_NAME_CHARACTERS]}


def _parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for file in batch.to_pylist():
            yield pa.RecordBatch.from_pylist(certificates_of(file["path"], file["content"]), schema=ARROW_SCHEMA)


def read_certificates(spark: SparkSession, source: str, files_per_batch: int) -> DataFrame:
    """One row for each certificate in the files that arrive in ``source``."""
    files = (
        spark.readStream.format("binaryFile")
        .schema(INPUT_SCHEMA)
        .option("maxFilesPerTrigger", files_per_batch)
        .option("pathGlobFilter", "*.pem")
        .load(source)
    )
    return files.select("path", "content").mapInArrow(_parse, SCHEMA)


def store_batch(database: Path, query: str, batch: int, rows: Sequence[Sequence[str]]) -> bool:
    """Add one batch to the database in one transaction; False if the batch was added before.

    ``query`` is the id of the query, which stays the same as long as its checkpoint exists.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=DATABASE_WAIT_SECONDS)) as connection:
        connection.executescript(TABLES)
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            known = connection.execute("SELECT 1 FROM batches WHERE query = ? AND batch = ?", (query, batch)).fetchone()
            if known:
                return False
            connection.execute("INSERT INTO batches VALUES (?, ?)", (query, batch))
            marks = ", ".join("?" * len(COLUMNS))
            connection.executemany(f"INSERT INTO certificates VALUES ({marks})", rows)  # noqa: S608  # question marks
            connection.executemany(
                "INSERT INTO issuers VALUES (?, 1) ON CONFLICT (issuer) DO UPDATE SET certificates = certificates + 1",
                [(row[COLUMNS.index("issuer")],) for row in rows if not row[COLUMNS.index("error")]],
            )
    return True


def _batch_writer(database: Path) -> Callable[[DataFrame, int], None]:
    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise RuntimeError("the local property sql.streaming.queryId is not set")
        rows = [tuple(row) for row in frame.select(*COLUMNS).collect()]
        if not store_batch(database, query, batch, rows):
            print(f"batch {batch} is already in the database", flush=True)

    return write


def start_queries(certificates: DataFrame, arguments: argparse.Namespace) -> list[StreamingQuery]:
    """Start both queries. A later attempt finds their checkpoints by their names."""

    def triggered(writer: DataStreamWriter) -> DataStreamWriter:
        if arguments.once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{arguments.interval} seconds")

    to_files = certificates.writeStream.queryName("certificates").format("json").option("path", arguments.output)
    queries = [triggered(to_files).start()]
    if arguments.database is not None:
        to_database = certificates.writeStream.queryName("expiry").foreachBatch(_batch_writer(arguments.database))
        queries.append(triggered(to_database).start())
    return queries


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Maintain a list of the certificates that arrive in a directory.")
    parser.add_argument("--input", required=True, help="directory (or URL) in which PEM files arrive")
    parser.add_argument("--output", required=True, help="directory (or URL) for the JSON lines")
    parser.add_argument("--database", type=Path, help="SQLite file on the driver's machine (default: none)")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between batches (default: 10)")
    parser.add_argument("--files-per-batch", type=int, default=500, help="maximum files in a batch (default: 500)")
    parser.add_argument("--once", action="store_true", help="end when all existing files have been read")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Run until stopped. If a query fails, the pipeline ends with its error."""
    parsed = parse_arguments(arguments)
    spark = SparkSession.builder.appName("cert-stream").getOrCreate()
    certificates = read_certificates(spark, parsed.input, parsed.files_per_batch)
    queries = start_queries(certificates, parsed)
    try:
        if not parsed.once:
            spark.streams.awaitAnyTermination()
        for query in queries:
            query.awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
