"""Analyses the gateway's audit log as a PySpark job: reports who did what on a cluster, and what was unusual.

Reads the segments of an audit log, compressed or not. First it verifies them: the hash chain and the signed checkpoints
of each segment on the executors, the links between segments on the driver, then all bytes of the proxy's access log
that the chain covers. It does not analyse a log that was changed, and its error message says where the change is. Runs
on any Spark 4:

    spark-submit --master 'local[2]' access_report.py --log .sluice/gateway/audit
    sluice submit --wait access_report.py -- --log /srv/sluice/gateway/audit --format markdown

The driver lists the segments and the executors open them, so all must see the same paths, as with every file that Spark
reads. The driver collects no records, only counts, the first rows of each table, and one row per segment.

This file is self-contained: it needs only pyspark, pyarrow and cryptography.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    Window,
    functions as F,  # noqa: N812 - the name every PySpark program gives it
)

# --- limits on untrusted input ---------------------------------------------------------------------

MAX_LINE_BYTES = 16 << 10
"""Maximum length of a line of an audit log."""
MAX_SEGMENT_BYTES = 128 << 20
"""Maximum size of an uncompressed segment."""
MAX_SEGMENTS = 100_000
MAX_TRAFFIC_BYTES = 2 << 20
"""Maximum bytes of access log lines that one record may cover."""
MAX_ACCESS_LINE_BYTES = 64 << 10
MAX_UNSIGNED_RECORDS = 4_000
"""No writer leaves more records than this without a checkpoint."""
MAX_BATCH_ROWS = 2_000
MAX_TEXT = 200
MAX_PARTITIONS = 256
LISTED_ROWS = 20
"""Number of rows of a table in the text report."""
LISTED = 1_000
"""Maximum number of rows of a table that the driver collects. All rows are counted."""
CELL_WIDTH = 48

GENESIS = "0" * 64
KEY_ID_CHARACTERS = 32
SIGNED_PREFIX = b"sluice audit checkpoint\n"
SIGNATURE_MARK = b',"signature":"'

# --- what counts as unusual ------------------------------------------------------------------------

HISTORY_DAYS = 7
"""Number of active days before a principal's requests can count as unusual."""
BURST_REFUSALS = 20
BURST_MINUTES = 5
SHARED_ADDRESSES = 5
"""A credential is considered shared at this many addresses within an hour."""
DORMANT_DAYS = 30

HOUR, DAY, MINUTE = 3600, 86_400, 60
MAX_SECONDS = 1 << 33
"""Upper limit of valid times (in the year 2242)."""


class Severity(NamedTuple):
    """Severity and meaning of a kind of finding; ``rank`` 0 is the worst."""

    finding: str
    rank: int
    severity: str
    meaning: str


SEVERITIES = (
    Severity("log-gap", 0, "high", "requests are missing in the proxy's access log"),
    Severity("revoked-credential", 0, "high", "somebody holds a credential that was revoked, and tries it"),
    Severity("burst-of-refusals", 0, "high", f"at least {BURST_REFUSALS} refusals within {BURST_MINUTES} minutes"),
    Severity("shared-credential", 1, "medium", f"one credential at {SHARED_ADDRESSES} addresses or more in an hour"),
    Severity("new-address", 1, "medium", "first use of an address by a principal known for a week or more"),
    Severity("off-hours", 1, "medium", "at a time of day at which this principal was never active before"),
    Severity("dormant-principal", 1, "medium", f"active again after {DORMANT_DAYS} days or more"),
    Severity("malformed-line", 2, "low", "a line of the proxy's access log is no JSON"),
    Severity("recovered", 3, "info", "a crash cut a line short; the log went on"),
)
RANKS = {severity.finding: severity for severity in SEVERITIES}


class LogError(Exception):
    """The log was changed or cannot be read. The message says where."""


# --- segments: listing, reading, verifying (pure except for reading) ------------------------------------


class Source(NamedTuple):
    """A segment: its path, first line, and the number of bytes to read (-1: all), so later writes are ignored."""

    path: str
    first: int
    size: int


class Proof(NamedTuple):
    """The result of verifying one segment by itself, or the error."""

    path: str
    error: str
    first: int = 0
    first_previous: str = ""
    last: int = 0
    last_digest: str = ""
    leading: int = 0
    """Number of records before its first checkpoint."""
    unsigned: int = 0
    """Number of records after its last checkpoint."""
    checkpoints: int = 0
    aside: str = ""
    """Sequence number and digest of each requested record in this segment: ``7=ab…``, separated by spaces."""


_SEGMENT = re.compile(r"audit-(\d{12,18})-(\d{12,18})\.jsonl(\.gz)?")
CURRENT = "current.jsonl"
CHECKPOINT = "checkpoint.json"
VERIFICATION_KEY = "verification-key.pem"


def find_segments(directory: Path) -> list[Source]:
    """The segments of the log in ``directory``, in order; raises :class:`LogError` if there are none."""
    found: dict[int, Source] = {}
    for entry in sorted(directory.iterdir() if directory.is_dir() else ()):
        if match := _SEGMENT.fullmatch(entry.name):
            # While a segment is compressed, both files exist for a moment, with the same content.
            found.setdefault(int(match[1]), Source(str(entry.absolute()), int(match[1]), -1))
            if len(found) > MAX_SEGMENTS:
                raise LogError(f"{directory} has more than {MAX_SEGMENTS} segments")
    segments = [found[first] for first in sorted(found)]
    current = directory / CURRENT
    if current.is_file() and (size := current.stat().st_size):
        segments.append(Source(str(current.absolute()), -1, size))
    if not segments:
        raise LogError(f"there is no audit log in {directory}")
    return segments


def lines_of(source: Source) -> Iterator[bytes]:
    """The complete lines of a segment; raises :class:`LogError` if it cannot be read or is too large."""
    path = Path(source.path)
    packed = path if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    try:
        if path.suffix != ".gz" and path.exists():
            with path.open("rb") as file:
                yield from _bounded(file, MAX_SEGMENT_BYTES if source.size < 0 else source.size, source)
        else:
            with gzip.open(packed, "rb") as unpacked:
                yield from _bounded(unpacked, MAX_SEGMENT_BYTES, source)
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"segment {path.name} cannot be read: {error}") from error


def _bounded(file: IO[bytes] | gzip.GzipFile, limit: int, source: Source) -> Iterator[bytes]:
    left = limit
    while left > 0 and (line := file.readline(min(MAX_LINE_BYTES + 1, left))):
        left -= len(line)
        if not line.endswith(b"\n"):
            if left == 0:
                break
            raise LogError(f"segment {Path(source.path).name} has a line that is truncated or too long")
        yield line
    # With a size limit, an incomplete last line is still being written and is no error.
    if left <= 0 and source.size < 0:
        raise LogError(f"segment {Path(source.path).name} holds more than {MAX_SEGMENT_BYTES} bytes")


def load_key(pem: bytes) -> tuple[ec.EllipticCurvePublicKey, str]:
    """A verification key and its id; raises :class:`LogError`."""
    # Imported here: Spark sends this file's globals to the executors, and these cannot be pickled.
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise LogError("the verification key is not a public key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise LogError("the verification key is not a P-256 key")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return key, hashlib.sha256(der).hexdigest()[:KEY_ID_CHARACTERS]


def is_signed(line: bytes, record: dict[str, Any], key: ec.EllipticCurvePublicKey, key_id: str) -> bool:
    """Whether a checkpoint's line ends with a valid signature by ``key`` over all bytes before it."""
    unsigned, mark, encoded = line.rpartition(SIGNATURE_MARK)
    if not mark or record.get("key") != key_id or not encoded.endswith(b'"}'):
        return False
    try:
        signature = base64.b64decode(encoded[:-2], validate=True)
        key.verify(signature, SIGNED_PREFIX + unsigned, ec.ECDSA(hashes.SHA256()))
    except (binascii.Error, InvalidSignature):
        return False
    return True


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None if the line is not a record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    return record if type(record.get("sequence")) is int and isinstance(record.get("previous"), str) else None


class Chain:
    """Verifies the hash chain of one segment, starting with its first record."""

    def __init__(self, source: Source, key_pem: bytes | None, aside: frozenset[int] = frozenset()) -> None:
        self._name = Path(source.path).name
        self._key = load_key(key_pem) if key_pem is not None else None
        self._aside = aside
        self.first = self.count = self.unsigned = self.leading = self.checkpoints = 0
        self.previous = self.digest = ""
        self.found: list[str] = []

    def take(self, raw: bytes) -> dict[str, Any]:
        """The record of the next line; raises :class:`LogError` if the line breaks the chain."""
        line = raw.removesuffix(b"\n")
        record = parse_line(line)
        if record is None:
            raise LogError(f"segment {self._name}: the line after line {self.count} is damaged")
        number = record["sequence"]
        if not self.first:
            self.first, self.previous = number, record["previous"]
        elif number != self.count + 1 or record["previous"] != self.digest:
            raise LogError(f"line {self.count + 1} does not follow the line before it (segment {self._name})")
        self.count, self.digest = number, hashlib.sha256(line).hexdigest()
        if number in self._aside:
            self.found.append(f"{number}={self.digest}")
        if record["event"] != "checkpoint":
            self.unsigned += 1
            if not self.checkpoints:
                self.leading += 1
            if self.unsigned > MAX_UNSIGNED_RECORDS:
                raise LogError(f"line {number} is more than {MAX_UNSIGNED_RECORDS} lines after a checkpoint")
            return record
        if self._key is not None and not is_signed(line, record, *self._key):
            raise LogError(f"line {number} is a checkpoint that this log's key has not signed")
        self.checkpoints += 1
        self.unsigned = 0
        return record


def prove(source: Source, key_pem: bytes, aside: frozenset[int]) -> Proof:
    """Verify one segment by itself. :func:`link` verifies the links between segments."""
    chain = Chain(source, key_pem, aside)
    try:
        for raw in lines_of(source):
            chain.take(raw)
    except LogError as error:
        return Proof(source.path, str(error))
    return Proof(
        source.path,
        "",
        chain.first,
        chain.previous,
        chain.count,
        chain.digest,
        chain.leading,
        chain.unsigned,
        chain.checkpoints,
        " ".join(chain.found),
    )


def link(proofs: Sequence[Proof], sources: Sequence[Source], aside: dict[int, str]) -> int:
    """Verify that the verified segments form one complete log; return its number of lines.

    Raises :class:`LogError` for the first segment that breaks the chain, and for a checkpoint in ``aside`` (sequence ->
    digest) that is not in the log.
    """
    by_path = {proof.path: proof for proof in proofs}
    count, digest, unsigned = 0, GENESIS, 0
    found: dict[int, str] = {}
    for source in sources:
        proof = by_path.get(source.path)
        name = Path(source.path).name
        if proof is None or proof.error:
            raise LogError(proof.error if proof else f"segment {name} was not read")
        if proof.first == 0:
            raise LogError(f"segment {name} is empty")
        if proof.first > count + 1:
            raise LogError(f"lines {count + 1} to {proof.first - 1} are missing before segment {name}")
        if proof.first != count + 1 or proof.first_previous != digest:
            raise LogError(f"line {proof.first} does not follow the line before it (segment {name})")
        closed = source.first > 0
        if closed and (source.first != proof.first or proof.unsigned or f"-{proof.last:012}." not in name):
            raise LogError(f"segment {name} does not end where it was closed: its end was removed")
        if unsigned + proof.leading > MAX_UNSIGNED_RECORDS:
            raise LogError(f"more than {MAX_UNSIGNED_RECORDS} lines before line {proof.last} have no checkpoint")
        unsigned = proof.unsigned if proof.checkpoints else unsigned + proof.unsigned
        count, digest = proof.last, proof.last_digest
        found |= {int(number): value for number, _, value in (word.partition("=") for word in proof.aside.split())}
    for number, expected in sorted(aside.items()):
        if number > count:
            raise LogError(f"the log ends at line {count}, but line {number} was signed: its end was removed")
        if found.get(number) != expected:
            raise LogError(f"line {number} is not the kept checkpoint: the log was rewritten")
    return count


def kept_checkpoint(line: bytes, key_pem: bytes) -> tuple[int, str]:
    """Sequence number and digest of a kept checkpoint; raises :class:`LogError` if its signature is invalid."""
    stripped = line.removesuffix(b"\n")
    record = parse_line(stripped)
    if record is None or record["event"] != "checkpoint" or not is_signed(stripped, record, *load_key(key_pem)):
        raise LogError("the kept checkpoint is not one that this log's key has signed")
    return record["sequence"], hashlib.sha256(stripped).hexdigest()


# --- the access log that records cover ---------------------------------------------------------------------


class Batch(NamedTuple):
    """The access log lines that one record covers: their position and expected digest."""

    path: str
    number: int
    offset: int
    size: int
    digest: str
    sequence: int
    time: str


class TrafficProof(NamedTuple):
    """The result of verifying one file of the access log against the records, or the error."""

    path: str
    error: str
    number: int
    start: int
    end: int
    more: bool
    """Whether the file has bytes after those that records cover."""


def batch_of(record: dict[str, Any], directory: Path) -> Batch:
    """The lines that an ``access`` record covers; raises :class:`LogError` if the record is malformed."""
    kept = record.get("traffic")
    kept = kept if isinstance(kept, dict) else {}
    numbers = [kept.get(name) for name in ("file", "offset", "size")]
    sequence = record["sequence"]
    if not all(type(number) is int for number in numbers) or not isinstance(kept.get("sha256"), str):
        raise LogError(f"line {sequence} does not say where the lines of the access log are")
    number, offset, size = (int(each or 0) for each in numbers)
    if not 0 < size <= MAX_TRAFFIC_BYTES or not 0 <= offset <= MAX_SEGMENT_BYTES or not 0 < number <= MAX_SEGMENTS:
        raise LogError(f"line {sequence} stands for {size} bytes at {offset}, which is out of range")
    path = directory / f"traffic-{number:09}.jsonl"
    return Batch(str(path), number, offset, size, kept["sha256"], sequence, printable(record.get("time")))


class TrafficFile:
    """The bytes of one file of the access log, compressed or not, in order."""

    def __init__(self, path: str, file: IO[bytes] | gzip.GzipFile) -> None:
        self._name = Path(path).name
        self._file = file

    def read(self, batch: Batch, after: int | None = None) -> bytes:
        """The bytes that the record covers; raises :class:`LogError` if they differ or do not start at ``after``."""
        if after is not None and batch.offset != after:
            raise LogError(f"line {batch.sequence} does not continue the access log where it ended before")
        try:
            self._file.seek(batch.offset)
            data = self._file.read(batch.size)
        except (OSError, EOFError, zlib.error) as error:
            raise LogError(f"{self._name} cannot be read: {error}") from error
        if len(data) != batch.size or hashlib.sha256(data).hexdigest() != batch.digest:
            raise LogError(f"{self._name} has other bytes than line {batch.sequence} stands for")
        return data

    def has_more(self) -> bool:
        """Whether the file has bytes after those read last."""
        return bool(self._file.read(1))


@contextlib.contextmanager
def opened(path: str) -> Iterator[TrafficFile]:
    """Open the file, or its compressed version; raises :class:`LogError` if neither exists."""
    try:
        with Path(path).open("rb") if Path(path).exists() else gzip.open(path + ".gz", "rb") as file:
            yield TrafficFile(path, file)
    except OSError as error:
        raise LogError(f"{Path(path).name} is missing: {error.strerror}") from error


def prove_traffic(batches: Iterator[Batch]) -> Iterator[TrafficProof]:
    """Verify the files of ``batches``, which must be grouped by file and in order."""
    for path, of_file in itertools.groupby(batches, key=lambda batch: batch.path):
        yield _prove_file(path, of_file)


def _prove_file(path: str, batches: Iterator[Batch]) -> TrafficProof:
    first = next(batches)
    end = first.offset
    try:
        with opened(path) as file:
            for batch in itertools.chain((first,), batches):
                end += len(file.read(batch, after=end))
            return TrafficProof(path, "", first.number, first.offset, end, file.has_more())
    except LogError as error:
        return TrafficProof(path, str(error), first.number, first.offset, end, more=False)


def link_traffic(proofs: Sequence[TrafficProof]) -> None:
    """Verify that the verified files form the complete access log; raises :class:`LogError`."""
    proofs = sorted(proofs, key=lambda proof: proof.number)
    for number, proof in enumerate(proofs, start=1):
        if proof.error:
            raise LogError(proof.error)
        name = Path(proof.path).name
        if proof.number != number or proof.start != 0:
            raise LogError(f"lines of the access log are missing before those in {name}")
        # In the last file, more bytes may be in the middle of a write or left over from a crash.
        if proof.more and number < len(proofs):
            raise LogError(f"{name} continues after its last line: data was added")


DECISIONS = {"allow": "allow", "allowed": "allow", "deny": "deny", "denied": "deny"}
MALFORMED = "malformed line of the access log"


def rows_of(batch: Batch, data: bytes) -> Iterator[Row]:
    """The access log lines of a batch as rows."""
    for line in data.removesuffix(b"\n").split(b"\n"):
        record = _access_record(line)
        yield row_of({**record, "event": "traffic", "sequence": batch.sequence, "time": batch.time})


def _access_record(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line) if len(line) <= MAX_ACCESS_LINE_BYTES else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return {"reason": MALFORMED}
    fields = {name: value for name, value in fields.items() if value != "-"}
    status = fields.get("status")
    if isinstance(status, str) and status.isascii() and status.isdigit():
        fields["status"] = int(status[:4])
    return {**fields, "at": fields.get("time"), "decision": DECISIONS.get(str(fields.get("decision")).lower(), "")}


# --- from lines to rows (pure) -------------------------------------------------------------------------


class Row(NamedTuple):
    """One record for the analysis; ``at`` is in seconds since the epoch."""

    sequence: int
    event: str
    at: int
    kind: str
    principal: str
    credential: str
    address: str
    operation: str
    refused: bool
    reason: str
    request_id: str


_COLUMN_TYPES: dict[str, pa.DataType] = {"sequence": pa.int64(), "at": pa.int64(), "refused": pa.bool_()}
_NUMBERS = ("first", "last", "leading", "unsigned", "checkpoints")


def _schema(names: Sequence[str], others: dict[str, pa.DataType]) -> pa.Schema:
    """A schema of string columns, except those in ``others``."""
    return pa.schema([pa.field(name, others.get(name, pa.string())) for name in names])


ROW_SCHEMA = _schema(Row._fields, _COLUMN_TYPES)
BATCH_SCHEMA = _schema(Batch._fields, dict.fromkeys(("number", "offset", "size", "sequence"), pa.int64()))
TRAFFIC_PROOF_SCHEMA = _schema(
    TrafficProof._fields, {**dict.fromkeys(("number", "start", "end"), pa.int64()), "more": pa.bool_()}
)
PROOF_SCHEMA = _schema(Proof._fields, dict.fromkeys(_NUMBERS, pa.int64()))
SOURCE_SCHEMA = _schema(("path", "first", "size", "last_digest"), dict.fromkeys(("first", "size"), pa.int64()))
_SPARK_TYPES = {"string": "string", "int64": "bigint", "bool": "boolean"}


def spark_schema(schema: pa.Schema) -> str:
    """An Arrow ``schema`` as Spark DDL."""
    return ", ".join(f"{field.name} {_SPARK_TYPES[str(field.type)]}" for field in schema)


def printable(value: object, limit: int = MAX_TEXT) -> str:
    """``value`` at most ``limit`` long, with unprintable characters replaced, because it may be hostile."""
    if not isinstance(value, str):
        return ""
    clean = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in value)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def seconds_of(text: object) -> int | None:
    """An RFC 3339 time as seconds since the epoch; None if it is invalid or out of range."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        if moment is None:
            return None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = int(moment.timestamp())
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < MAX_SECONDS else None


def row_of(record: dict[str, Any]) -> Row:
    """A record of the log as a row. Requests recorded by the proxy have the proxy's own time, if it is valid."""
    written = seconds_of(record.get("time")) or 0
    status = record.get("status")
    decision = record.get("decision")
    refused = decision == "deny" or (decision != "allow" and type(status) is int and status >= 400)
    return Row(
        sequence=record["sequence"],
        event=printable(record["event"]),
        at=seconds_of(record.get("at")) or written,
        kind=printable(record.get("kind")),
        principal=printable(record.get("principal")),
        credential=printable(record.get("credential")),
        address=printable(record.get("address")),
        operation=printable(record.get("operation")),
        refused=refused,
        reason=printable(record.get("reason")),
        request_id=printable(record.get("request_id")),
    )


# --- on Spark: reading -----------------------------------------------------------------------------------


def to_batches(rows: Iterator[NamedTuple], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Pack ``rows`` into Arrow batches of bounded size."""
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row._asdict())
        if len(batch) >= MAX_BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema=schema)
            batch = []
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def proving_stage(key_pem: bytes, aside: frozenset[int]) -> Stage:
    """UDF: maps segments to proofs."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sources = (Source(row["path"], row["first"], row["size"]) for batch in batches for row in batch.to_pylist())
        return to_batches((prove(source, key_pem, aside) for source in sources), PROOF_SCHEMA)

    return run


def reading_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: maps segments to rows. Fails the job if a segment has changed since it was verified."""

    def rows() -> Iterator[Row]:
        for batch in batches:
            for each in batch.to_pylist():
                source = Source(each["path"], each["first"], each["size"])
                chain = Chain(source, None)
                for raw in lines_of(source):
                    record = chain.take(raw)
                    if record["event"] not in {"checkpoint", "access"}:
                        yield row_of(record)
                if chain.digest != each["last_digest"]:
                    raise LogError(f"segment {source.path} was changed while it was read: run again")

    return to_batches(rows(), ROW_SCHEMA)


def listing_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: maps segments to the batches of access log lines that their records cover."""

    def found() -> Iterator[Batch]:
        for each in (row for batch in batches for row in batch.to_pylist()):
            for raw in lines_of(Source(each["path"], each["first"], each["size"])):
                # Parse only the lines of access records, because most records are of other kinds.
                record = parse_line(raw) if b'"event":"access"' in raw else None
                if record is not None and record["event"] == "access":
                    yield batch_of(record, Path(each["path"]).parent)

    return to_batches(found(), BATCH_SCHEMA)


def _listed(batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    return (Batch(**row) for batch in batches for row in batch.to_pylist())


def traffic_proving_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: maps batches to one proof per file."""
    return to_batches(prove_traffic(_listed(batches)), TRAFFIC_PROOF_SCHEMA)


def traffic_reading_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: maps batches to rows."""

    def rows() -> Iterator[Row]:
        for path, of_file in itertools.groupby(_listed(batches), key=lambda batch: batch.path):
            with opened(path) as file:
                for batch in of_file:
                    yield from rows_of(batch, file.read(batch))

    return to_batches(rows(), ROW_SCHEMA)


def read_traffic(segments: DataFrame, partitions: int) -> DataFrame:
    """Verify the access log that the verified ``segments`` cover; return its rows."""
    listed = segments.mapInArrow(listing_stage, spark_schema(BATCH_SCHEMA))
    # One task reads one file from start to end.
    batches = listed.repartition(partitions, "path").sortWithinPartitions("path", "offset").persist()
    proved = batches.mapInArrow(traffic_proving_stage, spark_schema(TRAFFIC_PROOF_SCHEMA)).collect()
    link_traffic([TrafficProof(**row.asDict()) for row in proved])
    return batches.mapInArrow(traffic_reading_stage, spark_schema(ROW_SCHEMA))


def read_log(spark: SparkSession, log: Log) -> tuple[DataFrame, int]:
    """Verify the log, then read it. Returns its rows without checkpoints, and its number of lines."""
    aside = dict(kept_checkpoint(line, log.key_pem) for line in log.kept)
    partitions = max(1, min(MAX_PARTITIONS, len(log.sources)))
    listed = [{**source._asdict(), "last_digest": ""} for source in log.sources]
    sources = spark.createDataFrame(pa.Table.from_pylist(listed, schema=SOURCE_SCHEMA)).repartition(partitions)
    proved = sources.mapInArrow(proving_stage(log.key_pem, frozenset(aside)), spark_schema(PROOF_SCHEMA)).collect()
    proofs = [Proof(**row.asDict()) for row in proved]
    lines = link(proofs, log.sources, aside)
    digests = {proof.path: proof.last_digest for proof in proofs}
    listed = [{**source._asdict(), "last_digest": digests[source.path]} for source in log.sources]
    whole = spark.createDataFrame(pa.Table.from_pylist(listed, schema=SOURCE_SCHEMA)).repartition(partitions)
    rows = whole.mapInArrow(reading_stage, spark_schema(ROW_SCHEMA))
    return rows.unionByName(read_traffic(whole, partitions)), lines


# --- on Spark: analysing ---------------------------------------------------------------------------------


def once(rows: DataFrame) -> DataFrame:
    """Requests and acts, each once. If auth service and proxy both recorded a request, the former's record counts."""
    asked = rows.where("event = 'decision'")
    known = asked.where("request_id <> ''").select("request_id").distinct()
    traffic = rows.where("event = 'traffic'").join(known, "request_id", "left_anti").select(*ROW_SCHEMA.names)
    return asked.unionByName(traffic).unionByName(rows.where("event = 'act'"))


def found(rows: DataFrame, finding: str, **columns: Column) -> DataFrame:
    """``rows`` as findings. Columns that are not given are empty."""
    severity = RANKS[finding]
    values: dict[str, Column] = {
        "rank": F.lit(severity.rank),
        "severity": F.lit(severity.severity),
        "finding": F.lit(finding),
        "principal": F.lit(""),
        "address": F.lit(""),
        "at": F.lit(0).cast("bigint"),
        "count": F.lit(1).cast("bigint"),
        "detail": F.lit(""),
        **columns,
    }
    return rows.select(*(value.alias(name) for name, value in values.items()))


def find_new_addresses(hourly: DataFrame) -> DataFrame:
    """The first hour at an address, for principals that were active on at least :data:`HISTORY_DAYS` earlier days."""
    named = hourly.where("principal <> '' and address <> ''")
    first = named.groupBy("principal", "address").agg(F.min("hour").alias("hour"), F.min("first_at").alias("at"))
    history = active_days(named)
    joined = first.join(history, "principal").where(F.col("day") < F.floor(F.col("hour") / 24))
    counted = joined.groupBy("principal", "address", "hour", "at").agg(F.count("*").alias("days"))
    used = named.groupBy("principal", "address").agg(F.sum("requests").alias("requests"))
    new = counted.where(F.col("days") >= HISTORY_DAYS).join(used, ["principal", "address"])
    detail = F.concat(F.lit("after "), F.col("days").cast("string"), F.lit(" days at other addresses"))
    return found(
        new,
        "new-address",
        principal=F.col("principal"),
        address=F.col("address"),
        at=F.col("at"),
        count=F.col("requests"),
        detail=detail,
    )


def active_days(hourly: DataFrame) -> DataFrame:
    """The days on which each principal was active."""
    return hourly.select("principal", F.floor(F.col("hour") / 24).alias("day")).distinct()


def find_off_hours(hourly: DataFrame) -> DataFrame:
    """Activity at a time of day (give or take an hour) at which the principal was not active on any earlier day.

    Only for principals with at least :data:`HISTORY_DAYS` earlier active days.
    """
    named = hourly.where("principal <> ''")
    active = named.groupBy("principal", "hour").agg(
        F.sum("requests").alias("requests"), F.min("first_at").alias("at"), F.max("address").alias("address")
    )
    active = active.withColumns({"day": F.floor(F.col("hour") / 24), "slot": F.col("hour") % 24})
    around = F.explode(F.array(*((F.col("slot") + shift) % 24 for shift in (23, 0, 1))))
    usual = active.select("principal", "day", around.alias("slot"))
    first_there = usual.groupBy("principal", "slot").agg(F.min("day").alias("first_day"))
    order = Window.partitionBy("principal").orderBy("day")
    ordinal = active_days(named).withColumn("before", F.row_number().over(order) - 1)
    joined = active.join(first_there, ["principal", "slot"]).join(ordinal, ["principal", "day"])
    unusual = joined.where((F.col("first_day") == F.col("day")) & (F.col("before") >= HISTORY_DAYS))
    hour = F.lpad(F.col("slot").cast("string"), 2, "0")
    return found(
        unusual,
        "off-hours",
        principal=F.col("principal"),
        address=F.col("address"),
        at=F.col("at"),
        count=F.col("requests"),
        detail=F.concat(hour, F.lit(" h, after "), F.col("before").cast("string"), F.lit(" days without")),
    )


def find_dormant(hourly: DataFrame) -> DataFrame:
    """The day on which a principal returned after at least :data:`DORMANT_DAYS` days."""
    order = Window.partitionBy("principal").orderBy("day")
    days = active_days(hourly.where("principal <> ''")).withColumn("away", F.col("day") - F.lag("day").over(order))
    back = days.where(F.col("away") >= DORMANT_DAYS)
    detail = F.concat(F.col("away").cast("string"), F.lit(" days"))
    return found(back, "dormant-principal", principal=F.col("principal"), at=F.col("day") * DAY, detail=detail)


def find_bursts(requests: DataFrame) -> DataFrame:
    """Bursts of refusals, by principal, or by address if the request had no principal."""
    refused = requests.where("refused").withColumns(
        {
            "minute": F.floor(F.col("at") / MINUTE),
            "where": F.when(F.col("principal") == "", F.col("address")).otherwise(F.lit("")),
        }
    )
    by_minute = refused.groupBy("principal", "where", "minute").agg(
        F.count("*").alias("count"), F.min("at").alias("at"), F.max("address").alias("address")
    )
    caller = Window.partitionBy("principal", "where").orderBy("minute")
    rolling = by_minute.withColumn("recent", F.sum("count").over(caller.rangeBetween(1 - BURST_MINUTES, 0)))
    dense = rolling.where(F.col("recent") >= BURST_REFUSALS)
    begins = F.col("minute") - F.lag("minute").over(caller) > BURST_MINUTES
    islands = dense.withColumn("episode", F.sum(F.coalesce(begins, F.lit(True)).cast("int")).over(caller))
    episodes = islands.groupBy("principal", "where", "episode").agg(
        F.min("at").alias("at"),
        F.max("recent").alias("most"),
        F.max("address").alias("address"),
        (F.max("minute") - F.min("minute") + 1).alias("minutes"),
    )
    return found(
        episodes,
        "burst-of-refusals",
        principal=F.col("principal"),
        address=F.col("address"),
        at=F.col("at"),
        count=F.col("most"),
        detail=F.concat(F.lit("for "), F.col("minutes").cast("string"), F.lit(" min")),
    )


def find_shared_credentials(requests: DataFrame) -> DataFrame:
    """Credentials that were used at several addresses within an hour."""
    used = requests.where("credential <> '' and address <> '' and not refused")
    hourly = used.groupBy("principal", "credential", F.floor(F.col("at") / HOUR).alias("hour")).agg(
        F.count_distinct("address").alias("addresses"), F.min("at").alias("at"), F.max("address").alias("address")
    )
    detail = F.concat(
        F.lit("credential "), F.col("credential"), F.lit(" at "), F.col("addresses").cast("string"), F.lit(" addresses")
    )
    return found(
        hourly.where(F.col("addresses") >= SHARED_ADDRESSES),
        "shared-credential",
        principal=F.col("principal"),
        address=F.col("address"),
        at=F.col("at"),
        count=F.col("addresses"),
        detail=detail,
    )


def find_revoked_credentials(requests: DataFrame) -> DataFrame:
    """Refused requests with a revoked credential."""
    tried = requests.where(F.col("refused") & F.col("reason").contains("revoked"))
    grouped = tried.groupBy("principal", "credential", "address").agg(
        F.min("at").alias("at"), F.count("*").alias("count")
    )
    return found(
        grouped,
        "revoked-credential",
        principal=F.col("principal"),
        address=F.col("address"),
        at=F.col("at"),
        count=F.col("count"),
        detail=F.concat(F.lit("credential "), F.col("credential")),
    )


def find_log_events(rows: DataFrame) -> DataFrame:
    """Findings about the log itself: gaps, recoveries and malformed lines."""
    events = {"gap": "log-gap", "recovered": "recovered"}
    of_log = [
        found(rows.where(F.col("event") == event), finding, at=F.col("at"), detail=F.col("reason"))
        for event, finding in events.items()
    ]
    strange = rows.where(f"event = 'traffic' and reason = '{MALFORMED}'")
    return of_log[0].unionByName(of_log[1]).unionByName(found(strange, "malformed-line", at=F.col("at")))


class Section(NamedTuple):
    """One table of the report. ``rows`` has the first of ``total`` rows. Numbers are ints, other values are text."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[tuple[str | int, ...]]
    total: int


class Report(NamedTuple):
    """The result: the number of verified lines, the totals, and the tables."""

    lines: int
    requests: int
    refused: int
    acts: int
    principals: int
    first: str
    last: str
    sections: Sequence[Section]


def moment_text(seconds: int | None) -> str:
    """The time in UTC, such as ``2026-03-01 12:00``."""
    return "" if not seconds else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def section(name: str, title: str, table: DataFrame, times: Sequence[str] = ()) -> Section:
    """The first :data:`LISTED` rows of a sorted ``table``, and its total. The columns in ``times`` become text."""
    rows = [
        tuple(moment_text(value) if column in times else value for column, value in row.asDict().items())
        for row in table.limit(LISTED + 1).collect()
    ]
    total = len(rows) if len(rows) <= LISTED else table.count()
    return Section(name, title, tuple(table.columns), rows[:LISTED], total)


def findings_of(rows: DataFrame, requests: DataFrame, since: int) -> DataFrame:
    """All findings from ``since`` on. Earlier rows serve as history for comparison."""
    hour = F.floor(F.col("at") / HOUR).alias("hour")
    hourly = (
        requests.groupBy("principal", "address", hour)
        .agg(F.count("*").alias("requests"), F.min("at").alias("first_at"))
        .persist()
    )
    asked = requests.where("event <> 'act'")
    parts = [
        find_new_addresses(hourly),
        find_off_hours(hourly),
        find_dormant(hourly),
        find_bursts(asked),
        find_shared_credentials(asked),
        find_revoked_credentials(asked),
        find_log_events(rows),
    ]
    everything = parts[0]
    for part in parts[1:]:
        everything = everything.unionByName(part)
    return everything.where(F.col("at") >= since)


def analyse(rows: DataFrame, lines: int, *, since: int = 0, until: int = MAX_SECONDS) -> Report:
    """The report about ``rows`` (see :data:`ROW_SCHEMA`). Rows before ``since`` serve as history only."""
    rows = rows.where(F.col("at") < until).persist()
    requests = once(rows).persist()
    shown = requests.where(F.col("at") >= since)
    asked = shown.where("event <> 'act'")
    refusals = F.sum(F.col("refused").cast("bigint")).alias("refused")
    totals = shown.agg(
        F.coalesce(F.sum((F.col("event") != "act").cast("bigint")), F.lit(0)).alias("requests"),
        F.coalesce(refusals, F.lit(0)).alias("refused"),
        F.coalesce(F.sum((F.col("event") == "act").cast("bigint")), F.lit(0)).alias("acts"),
        F.count_distinct(F.nullif("principal", F.lit(""))).alias("principals"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
    ).collect()[0]
    findings = findings_of(rows, requests, since).persist()
    counted = findings.groupBy("rank", "severity", "finding").agg(F.count("*").alias("count"))
    who = F.when(F.col("principal") == "", F.lit("(nobody)")).otherwise(F.col("principal"))
    nobody = asked.withColumn("principal", who)
    by_principal = nobody.groupBy("principal").agg(
        F.count("*").alias("requests"),
        refusals,
        F.count_distinct("address").alias("addresses"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
    )
    by_operation = asked.where("operation <> ''").groupBy("operation").agg(F.count("*").alias("requests"), refusals)
    by_reason = (
        asked.where("refused")
        .groupBy("reason")
        .agg(F.count("*").alias("refused"), F.count_distinct("address").alias("addresses"))
    )
    did = (
        nobody.where("operation <> '' and not refused")
        .groupBy("principal", "operation")
        .agg(F.count("*").alias("requests"), F.max("at").alias("last"))
    )
    acts = (
        shown.where("event = 'act'")
        .groupBy("principal", "kind")
        .agg(F.count("*").alias("acts"), F.min("at").alias("first"), F.max("at").alias("last"))
    )
    listed = findings.orderBy("rank", "finding", "at", "principal", "address").drop("rank")
    sections = [
        section("findings", "Findings", counted.orderBy("rank", "finding").drop("rank")),
        section("unusual", "What was unusual", listed, ("at",)),
        section("by_principal", "Principals", by_principal.orderBy(F.desc("requests"), "principal"), ("first", "last")),
        section("did", "Who did what", did.orderBy("principal", F.desc("requests"), "operation"), ("last",)),
        section("by_operation", "Operations", by_operation.orderBy(F.desc("requests"), "operation")),
        section("by_reason", "Refusals by reason", by_reason.orderBy(F.desc("refused"), "reason")),
        section("acts_by_kind", "Administrative acts", acts.orderBy("principal", "kind"), ("first", "last")),
    ]
    return Report(
        lines,
        totals["requests"],
        totals["refused"],
        totals["acts"],
        totals["principals"],
        moment_text(totals["first"]),
        moment_text(totals["last"]),
        sections,
    )


# --- the report as text, JSON, CSV, Markdown ------------------------------------------------------------


def totals_of(report: Report) -> list[tuple[str, str | int]]:
    """All fields except the tables, with readable names."""
    names = {"lines": "lines of the log, verified", "first": "first request or act", "last": "last request or act"}
    return [(names.get(name, name), value) for name, value in report._asdict().items() if name != "sections"]


def cell(value: str | int, limit: int) -> str:
    """``value`` as text of at most ``limit`` characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def render_table(part: Section) -> list[str]:
    """The table as aligned lines: numbers to the right, text to the left."""
    body = [[cell(value, CELL_WIDTH) for value in row] for row in part.rows[:LISTED_ROWS]]
    widths = [max(map(len, column)) for column in zip(part.header, *body, strict=True)]
    numeric = [bool(part.rows) and isinstance(value, int) for value in (part.rows[0] if part.rows else part.header)]

    def line(values: Sequence[str]) -> str:
        padded = (
            value.rjust(size) if right else value.ljust(size)
            for value, size, right in zip(values, widths, numeric, strict=True)
        )
        return ("  " + "  ".join(padded)).rstrip()

    lines = [part.title, line(part.header), line(["-" * size for size in widths]), *map(line, body)]
    if len(body) < part.total:
        lines.append(f"  … and {part.total - len(body)} more")
    return [*lines, ""]


def render_text(report: Report) -> str:
    """The report as plain text for people."""
    totals = Section("totals", "Totals", ("what", "value"), totals_of(report), 0)
    parts = [totals, *report.sections]
    return "\n".join(["Access report", "", *(line for part in parts for line in render_table(part))])


def render_json(report: Report) -> str:
    """The report as one JSON object. ``not_listed`` has the number of omitted rows of each truncated table."""
    tables = {part.name: [dict(zip(part.header, row, strict=True)) for row in part.rows] for part in report.sections}
    totals = {name: value for name, value in report._asdict().items() if name != "sections"}
    cut = {part.name: part.total - len(part.rows) for part in report.sections if part.total > len(part.rows)}
    return json.dumps({**totals, "not_listed": cut, **tables}, indent=2, ensure_ascii=False) + "\n"


def render_csv(report: Report, name: str) -> str:
    """One table as CSV (RFC 4180). Values that a spreadsheet would interpret as a formula are quoted as text."""
    (part,) = (each for each in report.sections if each.name == name)
    target = io.StringIO()
    writer = csv.writer(target)
    writer.writerow(part.header)
    for row in part.rows:
        writer.writerow(
            f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value for value in row
        )
    return target.getvalue()


def render_markdown(report: Report) -> str:
    """The report as Markdown tables. Markup in cells is escaped."""
    lines = ["# Access report", "", *(f"- {name}: {value}" for name, value in totals_of(report)), ""]
    for part in report.sections:
        lines += [f"## {part.title}", "", "| " + " | ".join(part.header) + " |", "|---" * len(part.header) + "|"]
        lines += ["| " + " | ".join(_escaped(str(value)) for value in row) + " |" for row in part.rows]
        if part.total > len(part.rows):
            lines.append(f"\n… and {part.total - len(part.rows)} more")
        lines.append("")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>()#!|~])", r"\\\1", text)


# --- the command -----------------------------------------------------------------------------------------


class Log(NamedTuple):
    """A log to verify and read."""

    sources: Sequence[Source]
    key_pem: bytes
    kept: Sequence[bytes]


TABLES = ("findings", "unusual", "by_principal", "did", "by_operation", "by_reason", "acts_by_kind")


def open_log(directory: Path, key: Path | None, key_id: str, checkpoints: Sequence[Path]) -> Log:
    """List a log's segments and load its key and checkpoints; raises :class:`LogError`."""
    try:
        # Read the checkpoints before listing the segments, so that the segments include them.
        kept = [path.read_bytes()[: MAX_LINE_BYTES + 1] for path in checkpoints]
        if (directory / CHECKPOINT).exists():
            kept.append((directory / CHECKPOINT).read_bytes()[: MAX_LINE_BYTES + 1])
        key_pem = (key or directory / VERIFICATION_KEY).read_bytes()[:MAX_LINE_BYTES]
        found_id = load_key(key_pem)[1]
        if key_id and found_id != key_id.lower():
            raise LogError(f"the key has id {found_id}, not {printable(key_id)}")
        return Log(find_segments(directory), key_pem, kept)
    except OSError as error:
        raise LogError(f"{error.filename}: {error.strerror}") from error


def moment(text: str) -> int:
    """Parse a time: ``7d`` or ``12h`` ago, or ISO 8601 (UTC without an offset). Returns seconds since the epoch."""
    if match := re.fullmatch(r"([1-9][0-9]{0,4})([hd])", text):
        ago = timedelta(hours=int(match[1]) * (24 if match[2] == "d" else 1))
        return int((datetime.now(UTC) - ago).timestamp())
    if (seconds := seconds_of(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 7d or 2026-12-31T12:00:00Z")
    return seconds


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; wrong usage exits with code 2 and a message."""
    parser = argparse.ArgumentParser(prog="access_report", description="Report who did what, from the audit log.")
    parser.add_argument("--log", type=Path, required=True, metavar="DIR", help="directory of the audit log, or a copy")
    parser.add_argument("--key", type=Path, metavar="FILE", help="public key to trust (default: the log's own)")
    parser.add_argument("--key-id", default="", metavar="ID", help="required id of the key")
    parser.add_argument(
        "--checkpoint", type=Path, action="append", default=[], metavar="FILE", help="kept checkpoint; may be repeated"
    )
    parser.add_argument("--since", type=moment, default=0, metavar="TIME", help="start of the report: 7d, or a time")
    parser.add_argument("--until", type=moment, default=MAX_SECONDS, metavar="TIME", help="end of the report")
    parser.add_argument("--format", choices=("table", "json", "csv", "markdown"), default="table")
    parser.add_argument("--table", choices=TABLES, default="unusual", help="table for --format csv")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to FILE instead of standard output")
    return parser.parse_args(argv)


def render(report: Report, form: str, table: str) -> str:
    """The report in the requested format."""
    match form:
        case "json":
            return render_json(report)
        case "csv":
            return render_csv(report, table)
        case "markdown":
            return render_markdown(report)
        case _:
            return render_text(report)


def main(argv: Sequence[str]) -> int:
    """Verify and analyse the log, and write the report. Returns the exit code: 1 if the log is not intact."""
    options = arguments(argv)
    try:
        log = open_log(options.log, options.key, options.key_id, options.checkpoint)
        spark = SparkSession.builder.appName("access report").getOrCreate()
        spark.conf.set("spark.sql.shuffle.partitions", max(2, min(MAX_PARTITIONS, 2 * len(log.sources))))
        try:
            rows, lines = read_log(spark, log)
            report = analyse(rows, lines, since=options.since, until=options.until)
        finally:
            spark.stop()
    except LogError as error:
        print(f"access_report: {error}", file=sys.stderr)
        return 1
    text = render(report, options.format, options.table)
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"access_report: cannot write {options.output}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{report.lines} lines, {report.requests} requests, {report.acts} acts: written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
