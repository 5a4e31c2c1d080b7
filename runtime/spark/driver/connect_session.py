"""The program of a Spark Connect session's driver: starts the server in its JVM, and ends when nobody uses it.

Travels like a user's pipeline and runs as one; it imports nothing of Sluice. Arguments: for how many seconds nobody may
ask anything before it ends. The port goes into :data:`ADDRESS_FILE`, beside the directory of the program.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ADDRESS_FILE = "connect.json"
LOOK_SECONDS = 1.0


def main(argv: list[str]) -> int:
    """Run one session to its end; returns the exit code."""
    from pyspark.sql import SparkSession

    idle_seconds = float(argv[0])
    spark = SparkSession.builder.getOrCreate()
    context = spark.sparkContext
    java = context._jvm  # noqa: SLF001  PySpark's own way into its JVM
    if java is None:
        return 1
    server = java.org.apache.spark.sql.connect.service.SluiceConnect
    publish(Path(__file__).resolve().parent.parent / ADDRESS_FILE, server.start(context._jsc.sc()))  # noqa: SLF001
    while server.idleMillis() < idle_seconds * 1000:
        time.sleep(LOOK_SECONDS)
    spark.stop()
    return 0


def publish(path: Path, port: int) -> None:
    """Write the port in one step, for the owner alone."""
    temporary = path.with_suffix(".part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"port": port}, file)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
