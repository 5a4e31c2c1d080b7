"""The certificate inventory under plain ``spark-submit``, compared with independent counts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import certifi
import pytest
from cryptography.hazmat.primitives import serialization

from sluice.pipelines import cert_inventory
from tests.unit.pipelines import certificates as made
from tests.unit.pipelines.certificates import make, pem

SPARK_TIMEOUT_SECONDS = 240
BUNDLE = Path(certifi.where())

pytestmark = [pytest.mark.spark, pytest.mark.timeout(SPARK_TIMEOUT_SECONDS + 30)]


def bundle_size() -> int:
    """The number of certificates in the Mozilla bundle, as grep counts it."""
    found = subprocess.run(["grep", "-c", "BEGIN", str(BUNDLE)], check=True, capture_output=True, text=True)
    return int(found.stdout)


def spark_submit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the pipeline's one file, far from this repository, on two local cores."""
    pipeline = shutil.copy(cert_inventory.__file__, folder / "shipped.py")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }
    submit = Path(sys.executable).with_name("spark-submit")
    options = ["--master", "local[2]", "--driver-memory", "768m", "--conf", "spark.ui.enabled=false"]
    return subprocess.run(
        [str(submit), *options, str(pipeline), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=SPARK_TIMEOUT_SECONDS,
    )


def rows_of(table: list[dict[str, Any]]) -> dict[str, int]:
    """Convert a table of names and counts to a mapping."""
    return {str(name): int(count) for name, count in (row.values() for row in table)}


def test_inventory_counts_the_mozilla_bundle_own_certificates_and_bad_inputs(tmp_path: Path) -> None:
    """The Mozilla bundle, a folder of own certificates, and every kind of bad input in one run."""
    inputs = tmp_path / "inputs"
    (inputs / "deep" / "er").mkdir(parents=True)
    (inputs / "empty.pem").touch()
    (inputs / "certificate.der").write_bytes(make())
    (inputs / "noise.bin").write_bytes(bytes(range(256)) * 8)
    (inputs / "dangling.pem").symlink_to("nowhere")
    os.mkfifo(inputs / "fifo")
    (inputs / "truncated.pem").write_bytes(pem(make(serial=made.SERIAL + 1)) + pem(make())[:200])
    key = made.EC_KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (inputs / "deep" / "key-and-certificate.pem").write_bytes(key + pem(make(serial=made.SERIAL + 2)))
    expired = pem(make(serial=made.SERIAL + 3, not_after=datetime(2025, 6, 1, tzinfo=UTC)))
    (inputs / "deep" / "er" / "twice.pem").write_bytes(expired * 2)
    report_file = tmp_path / "report.json"

    done = spark_submit(
        tmp_path,
        *("--input", str(BUNDLE), "--input", str(inputs), "--as-of", "2026-06-01"),
        *("--format", "json", "--output", str(report_file)),
    )

    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(report_file.read_text())
    assert report["certificates"] == bundle_size() + 4
    assert report["bad_inputs"] == 7
    assert report["inputs"] == report["certificates"] + report["bad_inputs"]
    assert report["duplicates"] == 1
    assert rows_of(report["bad_inputs_by_reason"]) == {
        cert_inventory.EMPTY_FILE: 1,
        cert_inventory.DER_CERTIFICATE: 1,
        cert_inventory.BINARY_DATA: 1,
        "unreadable: No such file or directory": 1,
        cert_inventory.NOT_REGULAR: 1,
        cert_inventory.TRUNCATED: 1,
        cert_inventory.PRIVATE_KEY: 1,
    }
    for table in ("by_key", "by_signature", "by_issuer", "by_expiry_year"):
        assert sum(rows_of(report[table]).values()) == report["certificates"], table
    assert report["not_listed"] == {}
    findings = {row["finding"]: (row["severity"], row["certificates"]) for row in report["findings"]}
    assert findings["duplicate"] == ("low", 1)
    expired_here = [row for row in report["affected"] if row["finding"] == "expired" and "twice.pem" in row["where"]]
    assert [row["where"].rpartition(":")[2] for row in expired_here] == ["1", "2"]
    assert key.splitlines()[1].decode() not in done.stdout + done.stderr + report_file.read_text()


def test_inventory_without_arguments_reports_the_bundle_as_a_table(tmp_path: Path) -> None:
    done = spark_submit(tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["certificates", str(bundle_size())] in lines
    assert ["inputs", "seen", str(bundle_size())] in lines
    assert ["bad", "inputs", "0"] in lines
