"""The driver program of :mod:`benchmarks.real_time`.

It reads numbers of rows. For each number it sends as many rows to the query, and answers with the milliseconds that
each row took from its map task to its reduce task.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

SOURCES = 2
LONG = 1 << 40
"""Added to each number, because py4j converts small numbers to Integer, which the source does not accept."""
BATCH = "5 seconds"
GAP_SECONDS = 0.02
ROW_SECONDS = 90.0
NOW = "cast(reflect('java.lang.System', 'nanoTime') as bigint)"


def sink(folder: str) -> Any:  # noqa: ANN401  # Spark's stubs have no type for it
    """Return a sink that writes a file for each partition and batch. The local class is sent to the executors."""

    class Files:
        def open(self, partition: int, epoch: int) -> bool:
            name = f"{partition}-{epoch}-{os.getpid()}-{time.monotonic_ns()}"
            self._file = Path(folder, name).open("w", buffering=1)  # noqa: SIM115  # closed below
            return True

        def process(self, row: Row) -> None:
            self._file.write(f"{row[0]} {row[1]}\n")

        def close(self, _error: Exception | None) -> None:
            self._file.close()

    return Files()


class Query:
    """A query in real-time mode with one shuffle."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm = spark._jvm  # noqa: SLF001  # the source has no other interface for Python
        if jvm is None:
            raise RuntimeError("there is no JVM")
        self._jvm, self._results, self._given = jvm, Path(folder, "results"), 0
        self._results.mkdir()
        memory = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
        session = spark._jsparkSession  # noqa: SLF001  # as above
        self._stream = memory.apply(session, SOURCES, jvm.org.apache.spark.sql.Encoders.LONG())
        rows = DataFrame(self._stream.toDF(), spark).selectExpr(
            f"value - {LONG} as value", "value % 16 as k", f"{NOW} as scanned"
        )
        moved = rows.repartition("k").selectExpr("value", f"{NOW} - scanned")
        writer = moved.writeStream.outputMode("update").foreach(sink(str(self._results)))
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        self._query = writer.trigger(realTime=BATCH).start()  # type: ignore[call-overload]  # not in the stubs

    def send(self, count: int) -> list[float]:
        """Send ``count`` rows, one at a time; returns how long each took through the shuffle, in milliseconds."""
        first, self._given = self._given, self._given + count
        for value in range(first, self._given):
            given = self._jvm.java.util.ArrayList()
            given.add(LONG + value)
            self._stream.addData(self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(given))
            time.sleep(GAP_SECONDS)
        until = time.monotonic() + ROW_SECONDS
        while time.monotonic() < until and self._query.isActive:
            found = self._found()
            if len(found) == self._given:
                return [found[value] / 1e6 for value in range(first, self._given)]
            time.sleep(0.1)
        raise RuntimeError(f"not all rows arrived: {self._query.exception()}")

    def _found(self) -> dict[int, int]:
        lines = [line for path in self._results.iterdir() for line in path.read_text().splitlines()]
        return {int(value): int(took) for value, took in (line.split() for line in lines if " " in line)}


def main() -> None:
    """Answer until the input ends."""
    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="real-time-") as folder:
        query = Query(spark, folder)
        for line in sys.stdin:
            sys.stdout.write(json.dumps(query.send(int(line))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
