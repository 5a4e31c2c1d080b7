"""The program of a Spark Connect session's driver: starts the server in its JVM, and ends when the session is idle.

It is distributed and run like a user's pipeline, and imports nothing from Sluice. Its argument is the idle timeout in
seconds. It writes the port to :data:`ADDRESS_FILE`, next to the directory of the program.
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
    java = context._jvm  # noqa: SLF001  PySpark has no public access to its JVM
    if java is None:
        return 1
    server = java.org.apache.spark.sql.connect.service.SluiceConnect
    publish(Path(__file__).resolve().parent.parent / ADDRESS_FILE, server.start(context._jsc.sc()))  # noqa: SLF001
    while server.idleMillis() < idle_seconds * 1000:
        time.sleep(LOOK_SECONDS)
    spark.stop()
    return 0


def publish(path: Path, port: int) -> None:
    """Write the port atomically, readable only by the owner."""
    temporary = path.with_suffix(".part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"port": port}, file)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
