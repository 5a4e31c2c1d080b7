"""Takes an inventory of X.509 certificates as a PySpark job.

Reads PEM files (by default the Mozilla root bundle of the ``certifi`` package), parses every certificate in
a Python UDF on the executors, and reports what certificates there are and their problems. Runs on any Spark 4:

    spark-submit --master 'local[2]' cert_inventory.py --input /etc/ssl/certs
    sluice submit --wait cert_inventory.py -- --input /etc/ssl/certs

The driver lists the paths and the executors open the files, so all must see the same paths, as with every
file that Spark reads. An input that is not a certificate becomes a counted row with a reason: it neither
fails the job nor is lost. Private keys are recognised by their label, and their content is dropped at once.

This file is self-contained: it needs only pyspark, pyarrow, cryptography and certifi.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import errno
import json
import os
import re
import stat
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import certifi
import pyarrow as pa
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    Window,
    functions as F,  # noqa: N812 - the name every PySpark program gives it
)

# --- limits on untrusted input ---------------------------------------------------------------------

MAX_FILE_BYTES = 64 << 20
"""Maximum size of an input file in bytes. A larger file is a bad input."""
MAX_BLOCK_BYTES = 1 << 20
"""Maximum size of a PEM block in bytes of text. A larger block is a bad input."""
MAX_FILES = 1_000_000
"""Maximum number of files in one run. More are an error before Spark starts."""
MAX_BATCH_ROWS = 1_000
MAX_BATCH_BYTES = 4 << 20
"""An Arrow batch ends when it reaches one of these limits."""
MAX_TEXT = 200
"""Maximum length of a name from a certificate or a path, in characters."""
MAX_PARTITIONS = 64

EXPIRES_SOON = timedelta(days=90)
MIN_RSA_BITS = 2048
SHORT_SERIAL_BITS = 48
"""CAs must use 64 random bits (CA/Browser Forum BR 7.1); fewer than 48 significant ones occur once in 2^16."""
MAX_SERIAL_BITS = 159
"""20 octets, where the first bit is the sign (RFC 5280 4.1.2.2)."""

LISTED_ROWS = 20
"""Number of rows of a table in the text report, except for the tables in :data:`COMPLETE`."""
COMPLETE = frozenset({"by_expiry_year", "by_key", "by_signature", "findings", "bad_inputs_by_reason"})
LISTED_JSON = 1_000
"""Maximum number of rows of a table that the driver collects. All rows are counted."""
LISTED_RANK = 1
"""Findings with at most this rank are listed with their certificates."""
CELL_WIDTH = 48

# --- findings --------------------------------------------------------------------------------------


class Severity(NamedTuple):
    """Severity and meaning of a kind of finding; ``rank`` 0 is the worst."""

    finding: str
    rank: int
    severity: str
    meaning: str


SEVERITIES = (
    Severity("expired", 0, "high", "validity ended before the date of the report"),
    Severity("md5-signature", 0, "high", "signed with MD5 (or MD2): forgeable"),
    Severity("sha1-signature", 0, "high", "signed with SHA-1: collisions are practical"),
    Severity("rsa-key-short", 0, "high", f"RSA key of less than {MIN_RSA_BITS} bits"),
    Severity("serial-negative", 1, "medium", "negative serial number (RFC 5280 4.1.2.2)"),
    Severity("serial-zero", 1, "medium", "serial number zero (RFC 5280 4.1.2.2)"),
    Severity("serial-long", 1, "medium", "serial number of more than 20 octets (RFC 5280 4.1.2.2)"),
    Severity("basic-constraints-missing", 1, "medium", "acts as a CA without basic constraints (RFC 5280 4.2.1.9)"),
    Severity("ca-without-key-cert-sign", 1, "medium", "CA whose key usage lacks keyCertSign (RFC 5280 4.2.1.3)"),
    Severity("extensions-malformed", 1, "medium", "an extension does not parse or occurs twice"),
    Severity("key-unreadable", 1, "medium", "public key of an unknown or malformed kind"),
    Severity("not-yet-valid", 1, "medium", "validity starts after the date of the report"),
    Severity("expires-soon", 1, "medium", f"validity ends within {EXPIRES_SOON.days} days"),
    Severity("version-1", 2, "low", "X.509 version 1: no extensions, so no limits on use"),
    Severity("ca-without-key-usage", 2, "low", "CA without a key usage extension (RFC 5280 4.2.1.3)"),
    Severity("serial-short", 2, "low", f"serial number of less than {SHORT_SERIAL_BITS} bits: hardly random"),
    Severity("duplicate", 2, "low", "the same certificate was seen before in the input"),
    Severity("weak-self-signature", 3, "info", "self-signed with SHA-1 or MD5: nobody relies on that signature"),
)

# --- reasons why an input is not a certificate --------------------------------------------------------

EMPTY_FILE = "empty file"
DER_CERTIFICATE = "DER certificate, not PEM"
DER_DATA = "DER data, not PEM"
BINARY_DATA = "binary data, not PEM"
NO_BLOCK = "no PEM block"
NOT_REGULAR = "not a regular file"
FILE_TOO_LARGE = f"file larger than {MAX_FILE_BYTES >> 20} MiB"
BLOCK_TOO_LARGE = f"PEM block larger than {MAX_BLOCK_BYTES >> 10} KiB"
TRUNCATED = "truncated PEM: BEGIN without END"
END_ALONE = "truncated PEM: END without BEGIN"
MISMATCH = "PEM labels of BEGIN and END differ"
BEGIN_MALFORMED = "malformed PEM BEGIN line"
EMPTY_BLOCK = "empty PEM block"
PRIVATE_KEY = "private key, content not read"
NOT_BASE64 = "PEM block is not base64"
NOT_PARSED = "certificate does not parse"

CERTIFICATE_LABELS = frozenset({"CERTIFICATE", "X509 CERTIFICATE", "X.509 CERTIFICATE"})
"""The last two are older names of the first (RFC 7468 section 5.1)."""
OTHER_LABELS = frozenset(
    {
        "ATTRIBUTE CERTIFICATE",
        "CERTIFICATE REQUEST",
        "CMS",
        "DH PARAMETERS",
        "EC PARAMETERS",
        "NEW CERTIFICATE REQUEST",
        "PKCS7",
        "PUBLIC KEY",
        "RSA PUBLIC KEY",
        "TRUSTED CERTIFICATE",
        "X509 CRL",
    }
)
"""Labels that the reason quotes. Other labels are not quoted, because there could be any number of them."""

_BEGIN = re.compile(rb"-----BEGIN ([A-Z0-9][A-Z0-9 .#]{0,63})-----")
_END = re.compile(rb"-----END ([A-Z0-9][A-Z0-9 .#]{0,63})-----")
_WEAK_OIDS = {"1.2.840.113549.1.1.2": "MD2", "1.2.840.113549.1.1.4": "MD5"}
_MALFORMED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""The exceptions that ``cryptography`` raises for malformed certificates."""


class Block(NamedTuple):
    """One input: a PEM block, or a file without any. A bad input has a ``reason`` and an empty ``body``."""

    source: str
    block: int
    reason: str
    body: bytes


class Row(NamedTuple):
    """One input after parsing: a certificate if ``reason`` is empty, else a bad input."""

    source: str
    block: int
    reason: str
    fingerprint: str = ""
    subject: str = ""
    issuer: str = ""
    key: str = ""
    signature: str = ""
    expires: str = ""
    expiry_year: int = 0
    findings: Sequence[str] = ()


PATH_SCHEMA = pa.schema([pa.field("path", pa.binary())])
_COLUMN_TYPES = {
    "block": pa.int32(),
    "body": pa.binary(),
    "expiry_year": pa.int32(),
    "findings": pa.list_(pa.string()),
}
BLOCK_SCHEMA = pa.schema([pa.field(name, _COLUMN_TYPES.get(name, pa.string())) for name in Block._fields])
ROW_SCHEMA = pa.schema([pa.field(name, _COLUMN_TYPES.get(name, pa.string())) for name in Row._fields])
_SPARK_TYPES = {"string": "string", "int32": "int", "binary": "binary", "list<item: string>": "array<string>"}


def spark_schema(schema: pa.Schema) -> str:
    """An Arrow ``schema`` as Spark DDL."""
    return ", ".join(f"{field.name} {_SPARK_TYPES[str(field.type)]}" for field in schema)


# --- from files to blocks (pure except for reading) ---------------------------------------------------


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` at most ``limit`` long, with unprintable characters replaced, because it may be hostile."""
    clean = "".join(character if character.isprintable() else "�" for character in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def display_path(path: bytes) -> str:
    """A path as printable text. File names may not be UTF-8."""
    return printable(path.decode("utf-8", errors="backslashreplace"))


def read_input(path: bytes) -> tuple[bytes, str]:
    """The content of ``path``, or the reason why it cannot be read; the other one is empty. Never blocks on a FIFO."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.EISDIR}:
            return b"", NOT_REGULAR
        return b"", f"unreadable: {os.strerror(error.errno or 0)}"
    return (b"", FILE_TOO_LARGE) if len(data) > MAX_FILE_BYTES else (data, "")


def _open_regular(path: str | bytes, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ENXIO, NOT_REGULAR)  # as the kernel does for a socket


def is_der_sequence(data: bytes) -> bool:
    """Whether ``data`` is exactly one DER SEQUENCE (X.690 8.1): a certificate, a CRL, PKCS#12, …"""
    if len(data) < 2 or data[0] != 0x30:
        return False
    first = data[1]
    if first < 0x80:
        return len(data) == 2 + first
    size = first & 0x7F
    return 1 <= size <= 4 and len(data) == 2 + size + int.from_bytes(data[2 : 2 + size])


def reason_without_block(data: bytes) -> str:
    """Why a file without any PEM block is a bad input."""
    if not data.strip():
        return EMPTY_FILE
    if is_der_sequence(data):
        return DER_DATA if load_certificate(data) is None else DER_CERTIFICATE
    text_like = b"\0" not in data and data.decode("utf-8", errors="replace").count("�") == 0
    return NO_BLOCK if text_like else BINARY_DATA


def block_of(source: str, number: int, label: str, end: str, lines: Sequence[bytes]) -> Block:
    """Classify one complete block by its labels. Drops the body unless it is a certificate."""
    body = b"".join(lines)
    if "PRIVATE KEY" in label:
        return Block(source, number, PRIVATE_KEY, b"")
    if label != end:
        return Block(source, number, MISMATCH, b"")
    if label not in CERTIFICATE_LABELS:
        what = label if label in OTHER_LABELS else "another kind of PEM block"
        return Block(source, number, f"{what}, not a certificate", b"")
    if not body:
        return Block(source, number, EMPTY_BLOCK, b"")
    if len(body) > MAX_BLOCK_BYTES:
        return Block(source, number, BLOCK_TOO_LARGE, b"")
    return Block(source, number, "", body)


def split_pem(source: str, data: bytes) -> Iterator[Block]:
    """All inputs of one file, in order, numbered from 1. Text outside of blocks is ignored (RFC 7468 section 2).

    Each line that starts with ``-----BEGIN`` is one input, good or bad, and so is each ``-----END`` without a begin, so
    that no input is lost. A file without either is one bad input.
    """
    number = 0
    label: str | None = None  # of the open block; empty when its BEGIN line was malformed and has been counted
    lines: list[bytes] = []

    def unfinished(label: str) -> Iterator[Block]:
        if label:
            yield Block(source, number, PRIVATE_KEY if "PRIVATE KEY" in label else TRUNCATED, b"")

    for raw in data.removeprefix(b"\xef\xbb\xbf").splitlines():
        line = raw.strip()
        if line.startswith(b"-----BEGIN"):
            yield from unfinished(label or "")
            number += 1
            begin = _BEGIN.fullmatch(line)
            label, lines = (begin[1].decode("ascii") if begin else ""), []
            if not begin:
                yield Block(source, number, BEGIN_MALFORMED, b"")
        elif line.startswith(b"-----END"):
            if label is None:
                number += 1
                yield Block(source, number, END_ALONE, b"")
            elif label:
                end = _END.fullmatch(line)
                yield block_of(source, number, label, end[1].decode("ascii") if end else "", lines)
            label = None
        elif label:
            lines.append(line)
    yield from unfinished(label or "")
    if number == 0:
        yield Block(source, 0, reason_without_block(data), b"")


def split_file(path: bytes) -> Iterator[Block]:
    """All inputs of the file at ``path``. An unreadable file is one bad input."""
    source = display_path(path)
    data, reason = read_input(path)
    if reason:
        yield Block(source, 0, reason, b"")
    else:
        yield from split_pem(source, data)


# --- from blocks to rows (pure) ------------------------------------------------------------------------


def load_certificate(der: bytes) -> x509.Certificate | None:
    """Parse ``der``; None if it is not a certificate."""
    try:
        return x509.load_der_x509_certificate(der)
    except _MALFORMED:
        return None


_SIGNATURE_FAMILIES = {
    "1.2.840.113549.1.1.10": "RSA-PSS",
    "1.2.840.113549.1.1.": "RSA",
    "1.3.14.3.2.": "RSA",
    "1.2.840.10045.4.": "ECDSA",
    "1.2.840.10040.4.": "DSA",
    "2.16.840.1.101.3.4.3.": "DSA",
}
"""Prefix of the OID -> family. The first match counts."""


def key_description(certificate: x509.Certificate) -> tuple[str, int]:
    """Type and size of the public key, such as ``("RSA 2048", 2048)``; ``("unknown", 0)`` if it cannot be read."""
    try:
        key = certificate.public_key()
    except _MALFORMED:
        return "unknown", 0
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"EC {key.curve.name}", key.key_size
    kind, bits = type(key).__name__.removesuffix("PublicKey"), getattr(key, "key_size", 0)
    return (f"{kind} {bits}" if bits else kind), bits


def signature_description(certificate: x509.Certificate) -> tuple[str, str]:
    """Names of the signature algorithm and its hash, such as ``("RSA with SHA-256", "SHA-256")``."""
    oid = certificate.signature_algorithm_oid.dotted_string
    try:
        algorithm = certificate.signature_hash_algorithm
        digest = "" if algorithm is None else hash_name(algorithm)
    except _MALFORMED:
        digest = _WEAK_OIDS.get(oid, "")
    if not digest:
        return {"1.3.101.112": "Ed25519", "1.3.101.113": "Ed448"}.get(oid, f"OID {oid}"), ""
    family = next((name for prefix, name in _SIGNATURE_FAMILIES.items() if oid.startswith(prefix)), f"OID {oid}")
    return f"{family} with {digest}", digest


def hash_name(algorithm: hashes.HashAlgorithm) -> str:
    """The usual name of a hash algorithm, such as ``SHA-256`` for ``sha256``."""
    return re.sub(r"^SHA(\d)", r"SHA-\1", algorithm.name.upper())


def name_text(name: x509.Name) -> str:
    """The common name, or else the complete name as text (RFC 4514)."""
    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return printable(_text(common[-1].value) if common else name.rfc4514_string())


def organisation(name: x509.Name) -> str:
    """The organisation, or else the organisational unit or the common name."""
    for oid in (NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COMMON_NAME):
        values = [_text(attribute.value) for attribute in name.get_attributes_for_oid(oid)]
        if any(value.strip() for value in values):
            return printable(" / ".join(values))
    return "(none)"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.hex()


def time_findings(not_before: datetime, not_after: datetime, as_of: datetime) -> Iterator[str]:
    """Findings about the validity at ``as_of``. Both ends are inclusive (RFC 5280 4.1.2.5)."""
    if as_of > not_after:
        yield "expired"
    elif as_of < not_before:
        yield "not-yet-valid"
    elif not_after - as_of < EXPIRES_SOON:
        yield "expires-soon"


def signature_findings(digest: str, *, self_issued: bool) -> Iterator[str]:
    """Findings about the hash of the signature. Nobody relies on the signature of a self-signed certificate."""
    if digest in {"SHA-1", "MD5", "MD2"}:
        if self_issued:
            yield "weak-self-signature"
        else:
            yield "sha1-signature" if digest == "SHA-1" else "md5-signature"


def serial_findings(serial: int) -> Iterator[str]:
    """Findings about the serial number."""
    if serial < 0:
        yield "serial-negative"
    elif serial == 0:
        yield "serial-zero"
    elif serial.bit_length() < SHORT_SERIAL_BITS:
        yield "serial-short"
    elif serial.bit_length() > MAX_SERIAL_BITS:
        yield "serial-long"


def extension_findings(certificate: x509.Certificate, *, self_issued: bool) -> Iterator[str]:
    """Findings about basic constraints and key usage. An end entity needs neither (RFC 5280 4.2.1)."""
    if certificate.version is x509.Version.v1:
        yield "version-1"
        return
    try:
        extensions = certificate.extensions
    except _MALFORMED:
        yield "extensions-malformed"
        return
    constraints = next((e.value for e in extensions if isinstance(e.value, x509.BasicConstraints)), None)
    usage = next((e.value for e in extensions if isinstance(e.value, x509.KeyUsage)), None)
    signs = usage is not None and usage.key_cert_sign
    if constraints is None:
        if self_issued or signs:
            yield "basic-constraints-missing"
    elif constraints.ca and usage is None:
        yield "ca-without-key-usage"
    elif constraints.ca and not signs:
        yield "ca-without-key-cert-sign"


def findings_of(certificate: x509.Certificate, as_of: datetime) -> Iterator[str]:
    """All findings about a single certificate (``duplicate`` needs the other certificates)."""
    self_issued = certificate.subject == certificate.issuer
    key, bits = key_description(certificate)
    yield from time_findings(certificate.not_valid_before_utc, certificate.not_valid_after_utc, as_of)
    yield from signature_findings(signature_description(certificate)[1], self_issued=self_issued)
    if key == "unknown":
        yield "key-unreadable"
    if key.startswith("RSA ") and bits < MIN_RSA_BITS:
        yield "rsa-key-short"
    yield from serial_findings(certificate.serial_number)
    yield from extension_findings(certificate, self_issued=self_issued)


def parse_block(block: Block, as_of: datetime) -> Row:
    """Parse one block into the row of a certificate or of a bad input."""
    bad = Row(block.source, block.block, block.reason)
    if block.reason:
        return bad
    try:
        der = base64.b64decode(b"".join(block.body.split()), validate=True)
    except binascii.Error:
        return bad._replace(reason=NOT_BASE64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the findings cover what cryptography warns about
        certificate = load_certificate(der)
        if certificate is None:
            return bad._replace(reason=NOT_PARSED)
        try:
            return Row(
                source=block.source,
                block=block.block,
                reason="",
                fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
                subject=name_text(certificate.subject),
                issuer=organisation(certificate.issuer),
                key=key_description(certificate)[0],
                signature=signature_description(certificate)[0],
                expires=certificate.not_valid_after_utc.date().isoformat(),
                expiry_year=certificate.not_valid_after_utc.year,
                findings=tuple(findings_of(certificate, as_of)),
            )
        except _MALFORMED:  # cryptography parses names, times and the version lazily
            return bad._replace(reason=NOT_PARSED)


# --- on Spark -------------------------------------------------------------------------------------------


def to_batches(rows: Iterable[Block | Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Pack ``rows`` into Arrow batches of bounded size."""
    batch: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row._asdict())
        size += len(row.body) if isinstance(row, Block) else 0
        if len(batch) >= MAX_BATCH_ROWS or size >= MAX_BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(batch, schema=schema)
            batch, size = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def split_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """UDF: maps paths to blocks."""
    paths = (path for batch in batches for path in batch.column("path").to_pylist() if path)
    return to_batches((block for path in paths for block in split_file(path)), BLOCK_SCHEMA)


def parse_stage(as_of: datetime) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """UDF: maps blocks to rows, with findings as of ``as_of``."""

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blocks = (Block(**values) for batch in batches for values in batch.to_pylist())
        return to_batches((parse_block(block, as_of) for block in blocks), ROW_SCHEMA)

    return parse


class Fact(NamedTuple):
    """``count`` rows have ``value`` in ``by``, which has ``total`` values. The others are set for findings only."""

    by: str
    value: str
    count: int  # type: ignore[assignment]  # the column's name in Spark; nobody asks a fact for tuple.count()
    total: int
    rank: int | None
    severity: str | None
    meaning: str | None


class Section(NamedTuple):
    """One table of the report. ``rows`` has the first of ``total`` rows. Numbers are ints, other values are text."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[tuple[str | int, ...]]
    total: int


class Report(NamedTuple):
    """The result: ``inputs`` = ``certificates`` + ``bad_inputs``, and the tables."""

    as_of: str
    inputs: int
    certificates: int
    bad_inputs: int
    duplicates: int
    sections: Sequence[Section]


BREAKDOWNS = {
    "key": "Key type and size",
    "signature": "Signature algorithm",
    "issuer": "Issuer organisation",
    "expiry_year": "Expiry year",
}
"""Column of a row -> title of its table."""


def with_duplicates(rows: DataFrame, partitions: int) -> DataFrame:
    """``rows`` with the finding ``duplicate`` on all copies of a certificate except the first. Needs a shuffle."""
    identity = F.when(F.col("reason") == "", F.col("fingerprint")).otherwise(F.concat_ws(":", "source", "block"))
    copies = Window.partitionBy("identity").orderBy("source", "block")
    later = F.when(F.row_number().over(copies) > 1, F.array(F.lit("duplicate")))
    together = rows.withColumn("identity", identity).repartition(partitions, "identity")
    return together.withColumn("findings", F.concat("findings", F.coalesce(later, F.array().cast("array<string>"))))


def count_facts(rows: DataFrame, severities: DataFrame) -> list[Fact]:
    """All counts of the report, in one shuffle. Findings include their severity.

    Most values are untrusted and unbounded, so the driver collects only the :data:`LISTED_JSON` most frequent of each
    kind.
    """
    bad = F.col("reason") != ""
    columns = [_fact(name, F.col(name).cast("string")) for name in BREAKDOWNS]
    found = F.transform("findings", lambda finding: _fact("finding", finding))
    of_certificate = F.concat(F.array(_fact("input", F.lit("certificate")), *columns), found)
    of_bad_input = F.array(_fact("input", F.lit("bad")), _fact("reason", F.col("reason")))
    facts = rows.select(F.explode(F.when(bad, of_bad_input).otherwise(of_certificate)).alias("fact"))
    counted = facts.groupBy("fact.by", "fact.value").count()
    frequent = Window.partitionBy("by").orderBy(F.desc("count"), "value")
    ranked = counted.withColumns(
        {"place": F.row_number().over(frequent), "total": F.count("*").over(Window.partitionBy("by"))}
    ).where(F.col("place") <= LISTED_JSON)
    is_finding = (F.col("by") == "finding") & (F.col("value") == F.col("finding"))
    joined = ranked.join(F.broadcast(severities), is_finding, "left")
    return [Fact(*row) for row in joined.select(*Fact._fields).collect()]


def _fact(by: str, value: Column) -> Column:
    return F.struct(F.lit(by).alias("by"), value.alias("value"))


def breakdown_sections(facts: Sequence[Fact]) -> list[Section]:
    """The number of certificates of each kind, the most frequent first; years in ascending order."""
    sections = []
    for name, title in BREAKDOWNS.items():
        mine = [fact for fact in facts if fact.by == name]
        mine.sort(key=lambda fact: fact.value if name == "expiry_year" else (-fact.count, fact.value))
        pairs = [(fact.value, fact.count) for fact in mine]
        sections.append(Section(f"by_{name}", title, (name, "certificates"), pairs, mine[0].total if mine else 0))
    return sections


def finding_sections(facts: Sequence[Fact], rows: DataFrame, severities: DataFrame) -> list[Section]:
    """The counts of the findings, worst first, and the certificates with findings of high or medium severity."""
    mine = sorted((fact for fact in facts if fact.by == "finding"), key=lambda fact: (fact.rank or 0, fact.value))
    counts = [(fact.severity or "", fact.value, fact.count, fact.meaning or "") for fact in mine]
    header = ("severity", "finding", "certificates", "meaning")
    sections = [Section("findings", "Findings", header, counts, len(counts))]
    affected = sum(fact.count for fact in mine if (fact.rank or 0) <= LISTED_RANK)
    if affected:
        found = rows.withColumn("finding", F.explode("findings")).join(F.broadcast(severities), "finding")
        worst = found.where(F.col("rank") <= LISTED_RANK).orderBy("rank", "finding", "subject", "source", "block")
        where = F.concat_ws(":", "source", "block").alias("where")
        listed = worst.limit(LISTED_JSON).select("severity", "finding", "subject", "expires", where).collect()
        title = "Certificates with findings of high or medium severity"
        columns = ("severity", "finding", "subject", "expires", "where")
        sections.append(Section("affected", title, columns, [tuple(row) for row in listed], affected))
    return sections


def bad_input_sections(facts: Sequence[Fact], rows: DataFrame) -> list[Section]:
    """The counts of bad inputs by reason, and their locations."""
    mine = [fact for fact in facts if fact.by == "reason"]
    if not mine:
        return []
    counts = sorted(((fact.value, fact.count) for fact in mine), key=lambda pair: (-pair[1], pair[0]))
    bad = rows.where("reason <> ''").orderBy("source", "block").limit(LISTED_JSON)
    listed = [tuple(row) for row in bad.select("source", "block", "reason").collect()]
    total = sum(fact.count for fact in mine)
    return [
        Section("bad_inputs_by_reason", "Bad inputs by reason", ("reason", "inputs"), counts, len(counts)),
        Section("bad", "Bad inputs", ("source", "block", "reason"), listed, total),
    ]


def take_inventory(spark: SparkSession, paths: Sequence[bytes], as_of: datetime) -> Report:
    """Run the Spark job over the files at ``paths``."""
    partitions = min(MAX_PARTITIONS, max(2, 2 * spark.sparkContext.defaultParallelism))
    files = spark.createDataFrame(pa.table({"path": list(paths)}, schema=PATH_SCHEMA))
    spread = files.repartition(min(partitions, max(1, len(paths))))
    blocks = spread.mapInArrow(split_stage, spark_schema(BLOCK_SCHEMA)).repartition(partitions).persist()
    parsed = blocks.mapInArrow(parse_stage(as_of), spark_schema(ROW_SCHEMA))
    rows = with_duplicates(parsed, partitions).persist()
    severities = spark.createDataFrame(pa.Table.from_pylist([severity._asdict() for severity in SEVERITIES]))

    facts = count_facts(rows, severities)
    certificates, bad = (sum(f.count for f in facts if (f.by, f.value) == ("input", v)) for v in ("certificate", "bad"))
    inputs = blocks.count()
    if certificates + bad != inputs:
        raise RuntimeError(
            f"{inputs} inputs were seen, but {certificates} certificates and {bad} bad inputs do not add up to that: "
            "a file changed while it was read; run again"
        )
    return Report(
        as_of=as_of.isoformat(timespec="seconds"),
        inputs=inputs,
        certificates=certificates,
        bad_inputs=bad,
        duplicates=sum(fact.count for fact in facts if (fact.by, fact.value) == ("finding", "duplicate")),
        sections=[
            *breakdown_sections(facts),
            *finding_sections(facts, rows, severities),
            *bad_input_sections(facts, rows),
        ],
    )


# --- the report as text and as JSON ---------------------------------------------------------------------


def width(text: str) -> int:
    """Number of columns of ``text`` in a fixed-width font (Unicode UAX 11)."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


def cell(value: str | int, limit: int) -> str:
    """``value`` as text of at most ``limit`` columns."""
    text = str(value)
    if width(text) <= limit:
        return text
    while width(text) >= limit:
        text = text[:-1]
    return text + "…"


def render_table(section: Section) -> list[str]:
    """The table as aligned lines: numbers to the right, text to the left.

    All columns except the last are cut to :data:`CELL_WIDTH`.
    """
    limits = [CELL_WIDTH] * (len(section.header) - 1) + [MAX_TEXT * 2]
    shown = section.rows[:LISTED_ROWS] if section.name not in COMPLETE else section.rows
    body = [[cell(value, limit) for value, limit in zip(row, limits, strict=True)] for row in shown]
    widths = [max(map(width, column)) for column in zip(section.header, *body, strict=True)]
    numeric = [isinstance(value, int) for value in shown[0]] if shown else [False] * len(widths)

    def line(values: Sequence[str]) -> str:
        padded = []
        for value, size, right in zip(values, widths, numeric, strict=True):
            gap = " " * (size - width(value))
            padded.append(gap + value if right else value + gap)
        return ("  " + "  ".join(padded)).rstrip()

    lines = [section.title, line(section.header), line(["-" * size for size in widths]), *map(line, body)]
    if len(shown) < section.total:
        lines.append(f"  … and {section.total - len(shown)} more")
    return [*lines, ""]


def render_text(report: Report) -> str:
    """The report as plain text for people."""
    totals = (
        ("inputs seen", report.inputs),
        ("certificates", report.certificates),
        ("bad inputs", report.bad_inputs),
        ("duplicates", report.duplicates),
    )
    sections = [Section("totals", "Totals", ("what", "count"), totals, len(totals)), *report.sections]
    lines = [line for section in sections for line in render_table(section)]
    return "\n".join([f"Certificate inventory as of {report.as_of}", "", *lines])


def render_json(report: Report) -> str:
    """The report as one JSON object. ``not_listed`` has the number of omitted rows of each truncated table."""
    tables = {s.name: [dict(zip(s.header, row, strict=True)) for row in s.rows] for s in report.sections}
    totals = {name: value for name, value in report._asdict().items() if name != "sections"}
    cut = {s.name: s.total - len(s.rows) for s in report.sections if s.total > len(s.rows)}
    return json.dumps({**totals, "not_listed": cut, **tables}, indent=2, ensure_ascii=False) + "\n"


# --- the command -----------------------------------------------------------------------------------------


def find_files(inputs: Sequence[Path]) -> list[bytes]:
    """All files below ``inputs``, each once even if several links lead to it; raises ValueError for a missing path.

    Folders that cannot be listed stay in the result, so that they count as bad inputs.
    """
    found: dict[bytes, None] = {}
    for path in inputs:
        if not os.path.lexists(path):
            raise ValueError(f"--input {path}: no such file or folder")
        for name in _files_below(os.fsencode(path)):
            found[os.path.realpath(name)] = None
            if len(found) > MAX_FILES:
                raise ValueError(f"--input: more than {MAX_FILES} files; split the input into several runs")
    return sorted(found)


def _files_below(path: bytes) -> Iterator[bytes]:
    if not Path(os.fsdecode(path)).is_dir():
        yield path
        return
    unlisted: list[bytes] = []
    for folder, _folders, names in os.walk(path, onerror=lambda error: unlisted.append(error.filename)):
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118 - pathlib has no bytes paths
    yield from unlisted


def moment(text: str) -> datetime:
    """Parse an ISO 8601 date, or date and time. Without an offset it is in UTC."""
    try:
        value = datetime.fromisoformat(text)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date like 2026-12-31 or 2026-12-31T12:00:00Z") from error


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; wrong usage exits with code 2 and a message."""
    parser = argparse.ArgumentParser(prog="cert_inventory", description="Take an inventory of X.509 certificates.")
    parser.add_argument(
        "--input",
        type=Path,
        action="append",
        metavar="PATH",
        help="PEM file, or folder to read recursively; may be repeated (default: certifi's Mozilla root bundle)",
    )
    parser.add_argument("--as-of", type=moment, metavar="DATE", help="check validity at this time (default: now)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output format (default: table)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to FILE instead of standard output")
    options = parser.parse_args(argv)
    options.as_of = options.as_of or datetime.now(UTC)
    try:
        options.paths = find_files(options.input or [Path(certifi.where())])
    except ValueError as error:
        parser.error(str(error))
    if not options.paths:
        parser.error("--input: the folders contain no files")
    return options


def main(argv: Sequence[str]) -> int:
    """Take the inventory and write the report. Returns the exit code."""
    options = arguments(argv)
    spark = SparkSession.builder.appName("certificate inventory").getOrCreate()
    try:
        report = take_inventory(spark, options.paths, options.as_of)
    finally:
        spark.stop()
    text = render_json(report) if options.format == "json" else render_text(report)
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"cert_inventory: cannot write {options.output}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{report.certificates} certificates, {report.bad_inputs} bad inputs: written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
