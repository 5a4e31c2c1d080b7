"""Who did what on a cluster, and what was unusual about it: the gateway's audit log, analysed as a PySpark job.

Reads the segments of an audit log, compressed or not. First it proves them: the chain of every segment on the
executors, the links between segments and the signed checkpoints on the driver, then every byte of the proxy's access
log that the chain stands for. A log that was touched is not analysed, and the message says where. Runs on any Spark 4:

    spark-submit --master 'local[2]' access_report.py --log .sluice/gateway/audit
    sluice submit --wait access_report.py -- --log /srv/sluice/gateway/audit --format markdown

The driver lists the segments; the executors open them, so they must see the same paths, as with every file that Spark
reads. No record comes to the driver: what does are counts, the first rows of each table, and one line per segment.

This file stands alone: it needs pyspark, pyarrow and cryptography, and nothing else.
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
"""Longest line of an audit log."""
MAX_SEGMENT_BYTES = 128 << 20
"""Most that one segment may hold, uncompressed."""
MAX_SEGMENTS = 100_000
MAX_TRAFFIC_BYTES = 2 << 20
"""Most lines of the access log, in bytes, that one record may stand for."""
MAX_ACCESS_LINE_BYTES = 64 << 10
MAX_UNSIGNED_RECORDS = 4_000
"""More records without a checkpoint between them are not what a writer leaves."""
MAX_BATCH_ROWS = 2_000
MAX_TEXT = 200
MAX_PARTITIONS = 256
LISTED_ROWS = 20
"""How many rows of a table the text report shows."""
LISTED = 1_000
"""How many rows of a table are brought to the driver at most; all are counted."""
CELL_WIDTH = 48

GENESIS = "0" * 64
KEY_ID_CHARACTERS = 32
SIGNED_PREFIX = b"sluice audit checkpoint\n"
SIGNATURE_MARK = b',"signature":"'

# --- what counts as unusual ------------------------------------------------------------------------

HISTORY_DAYS = 7
"""Days on which a principal was active before anything about it can be unusual."""
BURST_REFUSALS = 20
BURST_MINUTES = 5
SHARED_ADDRESSES = 5
"""One credential at so many addresses within an hour."""
DORMANT_DAYS = 30

HOUR, DAY, MINUTE = 3600, 86_400, 60
MAX_SECONDS = 1 << 33
"""No log has times after this (2242)."""


class Severity(NamedTuple):
    """What a finding means; ``rank`` 0 is the worst."""

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
    """The log was touched, or cannot be read; the message says where."""


# --- segments: listing, reading, proving (pure, but for reading) ----------------------------------------


class Source(NamedTuple):
    """A segment: where it is, and how many bytes of it count (what is written later does not; -1: all)."""

    path: str
    first: int
    size: int


class Proof(NamedTuple):
    """What one segment shows by itself, or why it is not whole."""

    path: str
    error: str
    first: int = 0
    first_previous: str = ""
    last: int = 0
    last_digest: str = ""
    leading: int = 0
    """Records before its first checkpoint."""
    unsigned: int = 0
    """Records after its last one."""
    checkpoints: int = 0
    aside: str = ""
    """Of those asked for, the sequence number and digest of each that is in here: ``7=ab…``, separated by blanks."""


_SEGMENT = re.compile(r"audit-(\d{12,18})-(\d{12,18})\.jsonl(\.gz)?")
CURRENT = "current.jsonl"
CHECKPOINT = "checkpoint.json"
VERIFICATION_KEY = "verification-key.pem"


def find_segments(directory: Path) -> list[Source]:
    """The segments of the log in ``directory``, in order; raises :class:`LogError` when there is none."""
    found: dict[int, Source] = {}
    for entry in sorted(directory.iterdir() if directory.is_dir() else ()):
        if match := _SEGMENT.fullmatch(entry.name):
            # Both are there for a moment while one is compressed: they are the same.
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
    """The whole lines of a segment; raises :class:`LogError` when it cannot be read or is too large."""
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
            raise LogError(f"segment {Path(source.path).name} has a line that is cut short or too long")
        yield line
    # With a size: the rest of a line is being written just now.
    if left <= 0 and source.size < 0:
        raise LogError(f"segment {Path(source.path).name} holds more than {MAX_SEGMENT_BYTES} bytes")


def load_key(pem: bytes) -> tuple[ec.EllipticCurvePublicKey, str]:
    """A verification key and its id; raises :class:`LogError`."""
    # Not at the top: Spark sends this file's globals to the executors, and these cannot be sent.
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
    """Whether a checkpoint's line has a signature of ``key`` over all bytes before it."""
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
    """The record of a line; None when it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    return record if type(record.get("sequence")) is int and isinstance(record.get("previous"), str) else None


class Chain:
    """Follows the chain of one segment from its first record on."""

    def __init__(self, source: Source, key_pem: bytes | None, aside: frozenset[int] = frozenset()) -> None:
        self._name = Path(source.path).name
        self._key = load_key(key_pem) if key_pem is not None else None
        self._aside = aside
        self.first = self.count = self.unsigned = self.leading = self.checkpoints = 0
        self.previous = self.digest = ""
        self.found: list[str] = []

    def take(self, raw: bytes) -> dict[str, Any]:
        """The record of the next line; raises :class:`LogError` when it does not fit."""
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
    """Check one segment by itself; links to others are checked by :func:`link`."""
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
    """Whether segments that hold by themselves are one whole log; returns how many lines it has.

    Raises :class:`LogError` for the first segment that does not fit, and for a checkpoint in ``aside`` (sequence ->
    digest) that the log does not have.
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
            raise LogError(f"segment {name} does not end as it was closed: its end was removed")
        if unsigned + proof.leading > MAX_UNSIGNED_RECORDS:
            raise LogError(f"more than {MAX_UNSIGNED_RECORDS} lines before line {proof.last} have no checkpoint")
        unsigned = proof.unsigned if proof.checkpoints else unsigned + proof.unsigned
        count, digest = proof.last, proof.last_digest
        found |= {int(number): value for number, _, value in (word.partition("=") for word in proof.aside.split())}
    for number, expected in sorted(aside.items()):
        if number > count:
            raise LogError(f"the log ends at line {count}, but line {number} was signed: its end was removed")
        if found.get(number) != expected:
            raise LogError(f"line {number} is not the checkpoint that was kept: the log was written anew")
    return count


def kept_checkpoint(line: bytes, key_pem: bytes) -> tuple[int, str]:
    """Sequence number and digest of a checkpoint that was kept; raises :class:`LogError` unless it is signed."""
    stripped = line.removesuffix(b"\n")
    record = parse_line(stripped)
    if record is None or record["event"] != "checkpoint" or not is_signed(stripped, record, *load_key(key_pem)):
        raise LogError("the kept checkpoint is not one that this log's key has signed")
    return record["sequence"], hashlib.sha256(stripped).hexdigest()


# --- the access log that records stand for -----------------------------------------------------------------


class Batch(NamedTuple):
    """Lines of the access log that one record stands for: where they are, and what they must be."""

    path: str
    number: int
    offset: int
    size: int
    digest: str
    sequence: int
    time: str


class TrafficProof(NamedTuple):
    """What a file of the access log shows: what is in it is what records stand for, or why not."""

    path: str
    error: str
    number: int
    start: int
    end: int
    more: bool
    """Whether there are bytes after the last that a record stands for."""


def batch_of(record: dict[str, Any], directory: Path) -> Batch:
    """What a record ``access`` says; raises :class:`LogError` when it says nothing that a writer says."""
    kept = record.get("traffic")
    kept = kept if isinstance(kept, dict) else {}
    numbers = [kept.get(name) for name in ("file", "offset", "size")]
    sequence = record["sequence"]
    if not all(type(number) is int for number in numbers) or not isinstance(kept.get("sha256"), str):
        raise LogError(f"line {sequence} does not say where the lines of the access log are")
    number, offset, size = (int(each or 0) for each in numbers)
    if not 0 < size <= MAX_TRAFFIC_BYTES or not 0 <= offset <= MAX_SEGMENT_BYTES or not 0 < number <= MAX_SEGMENTS:
        raise LogError(f"line {sequence} stands for {size} bytes at {offset}, which no writer leaves")
    path = directory / f"traffic-{number:09}.jsonl"
    return Batch(str(path), number, offset, size, kept["sha256"], sequence, printable(record.get("time")))


class TrafficFile:
    """The bytes of one file of the access log, compressed or not, in order."""

    def __init__(self, path: str, file: IO[bytes] | gzip.GzipFile) -> None:
        self._name = Path(path).name
        self._file = file

    def read(self, batch: Batch, after: int | None = None) -> bytes:
        """What the record stands for; raises :class:`LogError` when it is something else, or not at ``after``."""
        if after is not None and batch.offset != after:
            raise LogError(f"line {batch.sequence} does not go on where the access log was")
        try:
            self._file.seek(batch.offset)
            data = self._file.read(batch.size)
        except (OSError, EOFError, zlib.error) as error:
            raise LogError(f"{self._name} cannot be read: {error}") from error
        if len(data) != batch.size or hashlib.sha256(data).hexdigest() != batch.digest:
            raise LogError(f"{self._name} has other bytes than line {batch.sequence} stands for")
        return data

    def has_more(self) -> bool:
        """Whether there is anything after what was read last."""
        return bool(self._file.read(1))


@contextlib.contextmanager
def opened(path: str) -> Iterator[TrafficFile]:
    """The file, or what it was compressed into; raises :class:`LogError`."""
    try:
        with Path(path).open("rb") if Path(path).exists() else gzip.open(path + ".gz", "rb") as file:
            yield TrafficFile(path, file)
    except OSError as error:
        raise LogError(f"{Path(path).name} is missing: {error.strerror}") from error


def prove_traffic(batches: Iterator[Batch]) -> Iterator[TrafficProof]:
    """Check the files that ``batches`` are in; those of one file come together and in order."""
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
    """Whether files that hold by themselves are all of the access log; raises :class:`LogError`."""
    proofs = sorted(proofs, key=lambda proof: proof.number)
    for number, proof in enumerate(proofs, start=1):
        if proof.error:
            raise LogError(proof.error)
        name = Path(proof.path).name
        if proof.number != number or proof.start != 0:
            raise LogError(f"lines of the access log are missing before what is in {name}")
        # After the last one is what is being written just now, or was left by a crash.
        if proof.more and number < len(proofs):
            raise LogError(f"{name} goes on after its last line: it was added to")


DECISIONS = {"allow": "allow", "allowed": "allow", "deny": "deny", "denied": "deny"}
MALFORMED = "malformed line of the access log"


def rows_of(batch: Batch, data: bytes) -> Iterator[Row]:
    """The lines of the access log as rows."""
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
    """One record as the analysis sees it; ``at`` is in seconds since the epoch."""

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
    """Text, but for ``others``."""
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
    """The DDL that Spark wants for an Arrow ``schema``."""
    return ", ".join(f"{field.name} {_SPARK_TYPES[str(field.type)]}" for field in schema)


def printable(value: object, limit: int = MAX_TEXT) -> str:
    """``value`` without control or other unprintable characters (it may be hostile), at most ``limit`` long."""
    if not isinstance(value, str):
        return ""
    clean = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in value)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def seconds_of(text: object) -> int | None:
    """RFC 3339 as seconds since the epoch; None when it is no time, or one that no log can have."""
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
    """A record of the log as a row. The proxy's own time counts for what it decided, if it is a time at all."""
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
    """UDF: segments in, what each shows by itself out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sources = (Source(row["path"], row["first"], row["size"]) for batch in batches for row in batch.to_pylist())
        return to_batches((prove(source, key_pem, aside) for source in sources), PROOF_SCHEMA)

    return run


def reading_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: segments in, rows out; a segment that is not what was proved fails the job."""

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
    """UDF: segments in, the lines of the access log that their records stand for out."""

    def found() -> Iterator[Batch]:
        for each in (row for batch in batches for row in batch.to_pylist()):
            for raw in lines_of(Source(each["path"], each["first"], each["size"])):
                # Most records are of something else: their lines are not looked into.
                record = parse_line(raw) if b'"event":"access"' in raw else None
                if record is not None and record["event"] == "access":
                    yield batch_of(record, Path(each["path"]).parent)

    return to_batches(found(), BATCH_SCHEMA)


def _listed(batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    return (Batch(**row) for batch in batches for row in batch.to_pylist())


def traffic_proving_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: what records stand for in, what each file shows out."""
    return to_batches(prove_traffic(_listed(batches)), TRAFFIC_PROOF_SCHEMA)


def traffic_reading_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: what records stand for in, rows out."""

    def rows() -> Iterator[Row]:
        for path, of_file in itertools.groupby(_listed(batches), key=lambda batch: batch.path):
            with opened(path) as file:
                for batch in of_file:
                    yield from rows_of(batch, file.read(batch))

    return to_batches(rows(), ROW_SCHEMA)


def read_traffic(segments: DataFrame, partitions: int) -> DataFrame:
    """Prove the access log that ``segments``, which are proved, stand for; its rows."""
    listed = segments.mapInArrow(listing_stage, spark_schema(BATCH_SCHEMA))
    # One file is read by one task, from its beginning to its end.
    batches = listed.repartition(partitions, "path").sortWithinPartitions("path", "offset").persist()
    proved = batches.mapInArrow(traffic_proving_stage, spark_schema(TRAFFIC_PROOF_SCHEMA)).collect()
    link_traffic([TrafficProof(**row.asDict()) for row in proved])
    return batches.mapInArrow(traffic_reading_stage, spark_schema(ROW_SCHEMA))


def read_log(spark: SparkSession, log: Log) -> tuple[DataFrame, int]:
    """Prove the log, then read it: its rows without checkpoints, and the number of its lines."""
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
    """Requests and acts, each once: what both the auth service and the proxy recorded counts as the former's."""
    asked = rows.where("event = 'decision'")
    known = asked.where("request_id <> ''").select("request_id").distinct()
    traffic = rows.where("event = 'traffic'").join(known, "request_id", "left_anti").select(*ROW_SCHEMA.names)
    return asked.unionByName(traffic).unionByName(rows.where("event = 'act'"))


def found(rows: DataFrame, finding: str, **columns: Column) -> DataFrame:
    """``rows`` as findings; columns not given are empty."""
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
    """The first hour at an address, for principals that were active on :data:`HISTORY_DAYS` days before."""
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
    """The days on which each principal did anything."""
    return hourly.select("principal", F.floor(F.col("hour") / 24).alias("day")).distinct()


def find_off_hours(hourly: DataFrame) -> DataFrame:
    """A time of day (with the hour before and after) at which a principal was on no earlier day, after a week."""
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
    """The day on which a principal came back after :data:`DORMANT_DAYS`."""
    order = Window.partitionBy("principal").orderBy("day")
    days = active_days(hourly.where("principal <> ''")).withColumn("away", F.col("day") - F.lag("day").over(order))
    back = days.where(F.col("away") >= DORMANT_DAYS)
    detail = F.concat(F.col("away").cast("string"), F.lit(" days"))
    return found(back, "dormant-principal", principal=F.col("principal"), at=F.col("day") * DAY, detail=detail)


def find_bursts(requests: DataFrame) -> DataFrame:
    """Refusals that came fast, by principal, or by address where nobody was recognised."""
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
    """One credential in the hands of several."""
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
    """Who tries a credential that was revoked."""
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
    """What the log says about itself."""
    events = {"gap": "log-gap", "recovered": "recovered"}
    of_log = [
        found(rows.where(F.col("event") == event), finding, at=F.col("at"), detail=F.col("reason"))
        for event, finding in events.items()
    ]
    strange = rows.where(f"event = 'traffic' and reason = '{MALFORMED}'")
    return of_log[0].unionByName(of_log[1]).unionByName(found(strange, "malformed-line", at=F.col("at")))


class Section(NamedTuple):
    """One table of the report. ``rows`` may be the first of ``total``; numbers are ints, all else is text."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[tuple[str | int, ...]]
    total: int


class Report(NamedTuple):
    """The result: how many lines hold, what they are, and the tables."""

    lines: int
    requests: int
    refused: int
    acts: int
    principals: int
    first: str
    last: str
    sections: Sequence[Section]


def moment_text(seconds: int | None) -> str:
    """``2026-03-01 12:00`` in UTC."""
    return "" if not seconds else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def section(name: str, title: str, table: DataFrame, times: Sequence[str] = ()) -> Section:
    """The first :data:`LISTED` rows of a sorted ``table``, and how many there are; ``times`` become text."""
    rows = [
        tuple(moment_text(value) if column in times else value for column, value in row.asDict().items())
        for row in table.limit(LISTED + 1).collect()
    ]
    total = len(rows) if len(rows) <= LISTED else table.count()
    return Section(name, title, tuple(table.columns), rows[:LISTED], total)


def findings_of(rows: DataFrame, requests: DataFrame, since: int) -> DataFrame:
    """Everything unusual from ``since`` on; what was before is history that it is compared with."""
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
    """The report about ``rows`` (see :data:`ROW_SCHEMA`); what is before ``since`` counts as history only."""
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
    """Everything but the tables."""
    names = {"lines": "lines of the log, verified", "first": "first request or act", "last": "last request or act"}
    return [(names.get(name, name), value) for name, value in report._asdict().items() if name != "sections"]


def cell(value: str | int, limit: int) -> str:
    """``value`` as text of at most ``limit`` characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def render_table(part: Section) -> list[str]:
    """Aligned lines: numbers to the right, text to the left."""
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
    """The report for people; plain text that needs no terminal."""
    totals = Section("totals", "Totals", ("what", "value"), totals_of(report), 0)
    parts = [totals, *report.sections]
    return "\n".join(["Access report", "", *(line for part in parts for line in render_table(part))])


def render_json(report: Report) -> str:
    """The report for programs: one JSON object; ``not_listed`` says which tables are cut, and by how many rows."""
    tables = {part.name: [dict(zip(part.header, row, strict=True)) for row in part.rows] for part in report.sections}
    totals = {name: value for name, value in report._asdict().items() if name != "sections"}
    cut = {part.name: part.total - len(part.rows) for part in report.sections if part.total > len(part.rows)}
    return json.dumps({**totals, "not_listed": cut, **tables}, indent=2, ensure_ascii=False) + "\n"


def render_csv(report: Report, name: str) -> str:
    """One table as CSV (RFC 4180); what a spreadsheet would take for a formula is made text."""
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
    """The report as Markdown tables; nothing in a cell is markup."""
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
    """What is to be proved and read."""

    sources: Sequence[Source]
    key_pem: bytes
    kept: Sequence[bytes]


TABLES = ("findings", "unusual", "by_principal", "did", "by_operation", "by_reason", "acts_by_kind")


def open_log(directory: Path, key: Path | None, key_id: str, checkpoints: Sequence[Path]) -> Log:
    """List a log's segments and load what it is proved with; raises :class:`LogError`."""
    try:
        # Before the segments are listed: what they have then goes at least as far.
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
    """Parse ``7d`` or ``12h`` ago, or an ISO 8601 date or time (UTC without an offset); seconds since the epoch."""
    if match := re.fullmatch(r"([1-9][0-9]{0,4})([hd])", text):
        ago = timedelta(hours=int(match[1]) * (24 if match[2] == "d" else 1))
        return int((datetime.now(UTC) - ago).timestamp())
    if (seconds := seconds_of(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, as in 7d or 2026-12-31T12:00:00Z")
    return seconds


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; wrong usage exits with code 2 and a message."""
    parser = argparse.ArgumentParser(prog="access_report", description="Who did what, from the gateway's audit log.")
    parser.add_argument("--log", type=Path, required=True, metavar="DIR", help="directory of the audit log, or a copy")
    parser.add_argument("--key", type=Path, metavar="FILE", help="trust this public key (default: the one beside it)")
    parser.add_argument("--key-id", default="", metavar="ID", help="the key must have this id")
    parser.add_argument(
        "--checkpoint", type=Path, action="append", default=[], metavar="FILE", help="kept elsewhere; may be repeated"
    )
    parser.add_argument("--since", type=moment, default=0, metavar="TIME", help="report from then on: 7d, or a time")
    parser.add_argument("--until", type=moment, default=MAX_SECONDS, metavar="TIME", help="and until then")
    parser.add_argument("--format", choices=("table", "json", "csv", "markdown"), default="table")
    parser.add_argument("--table", choices=TABLES, default="unusual", help="which table, with --format csv")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to standard output")
    return parser.parse_args(argv)


def render(report: Report, form: str, table: str) -> str:
    """The report in the asked form."""
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
    """Prove the log, analyse it and write the report; returns the exit code: 1 for a log that is not whole."""
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
