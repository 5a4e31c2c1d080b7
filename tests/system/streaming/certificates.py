"""Certificates that come file by file, and what the bundled pipeline ``cert_stream.py`` made of them."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclass
class Incoming:
    """An input directory; each file in it holds two certificates."""

    directory: Path
    fingerprints: set[str] = field(default_factory=set)
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    _files: int = 0

    def add(self, files: int = 1) -> None:
        """Add more files, each of which appears at once and complete."""
        self.directory.mkdir(exist_ok=True)
        for _ in range(files):
            self._files += 1
            made = [self._certificate(2 * self._files + number) for number in range(2)]
            self.fingerprints.update(each.fingerprint(hashes.SHA256()).hex() for each in made)
            staged = self.directory.parent / f"staged-{self._files}"
            staged.write_bytes(b"".join(each.public_bytes(serialization.Encoding.PEM) for each in made))
            staged.rename(self.directory / f"{self._files:04d}.pem")

    def _certificate(self, serial: int) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"host-{serial}")])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority-{serial % 3}")])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(self._key.public_key())
            .serial_number(serial)
            .not_valid_before(START)
            .not_valid_after(START + dt.timedelta(days=serial))
            .sign(self._key, hashes.SHA256())
        )


def in_files(output: Path) -> list[str]:
    """The fingerprints in the file sink according to its manifest.

    Files that no batch committed are not counted.
    """
    log = output / "_spark_metadata"
    if not log.is_dir():
        return []
    batches = {int(path.name.removesuffix(".compact")): path for path in log.iterdir() if path.name[0].isdigit()}
    compacted = max((number for number, path in batches.items() if path.name.endswith(".compact")), default=-1)
    entries = [
        json.loads(line)
        for number, path in batches.items()
        if number >= compacted
        for line in path.read_text().splitlines()[1:]
    ]
    files = [Path(unquote(urlsplit(entry["path"]).path)) for entry in entries if entry["action"] == "add"]
    assert len(files) == len(set(files)), "a file is in the manifest twice"
    return [json.loads(line)["fingerprint"] for file in files for line in file.read_text().splitlines()]


def in_database(database: Path) -> list[str]:
    """The fingerprints in the database; fails if there are more of them than its issuer counts add up to."""
    if not database.exists():
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        try:
            rows = [str(row[0]) for row in connection.execute("SELECT fingerprint FROM certificates")]
            (counted,) = connection.execute("SELECT COALESCE(SUM(certificates), 0) FROM issuers").fetchone()
        except sqlite3.OperationalError:
            return []  # its tables are about to be made
    assert counted >= len(rows) or not rows
    return rows
