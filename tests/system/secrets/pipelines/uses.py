"""Uses and prints every secret it has, in the driver and on executors: ``uses.py FOLDER``.

It writes the digests of what it saw to the file ``seen`` in the folder, then waits for the file ``go``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

SECRETS = Path("/run/secrets")


def digests() -> dict[str, str]:
    """The digest of each secret, by name."""
    if not SECRETS.is_dir():
        return {}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in SECRETS.iterdir()}


def printed() -> None:
    """Print every value in several forms and in pieces, to standard output and standard error."""
    for path in sorted(SECRETS.iterdir()) if SECRETS.is_dir() else []:
        value = path.read_bytes()
        for form in (value, base64.b64encode(value), value.hex().encode(), repr(value).encode()):
            for at in range(0, len(form), 4093):
                sys.stdout.buffer.write(form[at : at + 4093])
                sys.stdout.buffer.flush()
            sys.stderr.write(f"\nthe password is {form!r}\n")
            sys.stderr.flush()


def on_executor(_: Iterable[int]) -> Iterable[dict[str, str]]:
    """Print all secrets on an executor, and return their digests."""
    printed()
    yield digests()


def main() -> None:
    """Use the secrets, report their digests, and wait."""
    folder = Path(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    printed()
    token = next(iter(sorted(SECRETS.iterdir())))
    spark.sparkContext.setJobDescription(f"a description with {token.read_text(encoding='utf-8')}")
    there = spark.sparkContext.parallelize(range(4), 4).mapPartitions(on_executor).collect()
    (folder / "seen.part").write_text(json.dumps({"driver": digests(), "executors": there}), encoding="utf-8")
    (folder / "seen.part").rename(folder / "seen")
    while not (folder / "go").exists():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
