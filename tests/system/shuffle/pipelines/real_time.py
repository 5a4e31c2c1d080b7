"""A query in real-time mode with a shuffle, and a source whose rows the test chooses.

The query counts numbers by their remainder. The sink is at least once: the state is right if the highest
count of each key is right.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

KEYS = 16
LONG = 1 << 40
"""Added to each number: py4j makes an Integer of a small one, which the source does not take."""
NOW = "cast(reflect('java.lang.System', 'nanoTime') as bigint)"
_queries: dict[str, Any] = {}
_streams: dict[str, Any] = {}


def sink(folder: str) -> Any:
    """The sink, which writes a file for each partition and batch.

    Its class is local to this function so that it is sent to the executors.
    """

    class Files:
        def open(self, partition: int, epoch: int) -> bool:
            name = f"{partition}-{epoch}-{os.getpid()}-{time.monotonic_ns()}"
            self._file = Path(folder, name).open("w", buffering=1)  # noqa: SIM115  # closed below
            return True

        def process(self, row: Row) -> None:
            self._file.write(" ".join(str(value) for value in row) + "\n")

        def close(self, error: Exception | None) -> None:
            self._file.close()

    return Files()


def start(spark: SparkSession, name: str, folder: str, sources: int = 2, kind: str = "aggregate") -> str:
    """Start a query, or restart it from its checkpoint with the rows its source already had."""
    jvm = spark._jvm
    assert jvm is not None
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    if name not in _streams:
        long = jvm.org.apache.spark.sql.Encoders.LONG()
        memory = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
        _streams[name] = memory.apply(spark._jsparkSession, sources, long)
    rows = DataFrame(_streams[name].toDF(), spark).selectExpr(
        f"value - {LONG} as value", f"value % {KEYS} as k", f"{NOW} as scanned"
    )
    if kind == "aggregate":
        counted = rows.groupBy("k").agg({"value": "max", "scanned": "max", "*": "count"})
        out = counted.selectExpr("k", "`count(1)`", "`max(value)`", f"{NOW} - `max(scanned)`")
    else:
        out = rows.dropDuplicates(["value"]).selectExpr("k", "1", "value", f"{NOW} - scanned")
    results = Path(folder) / "results"
    results.mkdir(exist_ok=True)
    writer = out.writeStream.outputMode("update").foreach(sink(str(results)))
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    _queries[name] = writer.trigger(realTime="5 seconds").start()  # type: ignore[call-overload]  # not in the stubs
    return str(_queries[name].id)


def add(spark: SparkSession, name: str, values: list[int], gap: float = 0.0) -> int:
    """Give the source rows; returns how many.

    If ``gap`` is set, each row is added alone, followed by a pause of ``gap`` seconds.
    """
    jvm = spark._jvm
    assert jvm is not None
    for chunk in [values] if not gap else [[value] for value in values]:
        given = jvm.java.util.ArrayList()
        for value in chunk:
            given.add(LONG + value)
        _streams[name].addData(jvm.org.apache.spark.api.python.PythonUtils.toSeq(given))
        time.sleep(gap)
    return len(values)


def until_slots(spark: SparkSession, count: int) -> None:
    """Wait until the executors can run ``count`` tasks at the same time."""
    context = spark.sparkContext._jsc.sc()
    while context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()) < count:
        time.sleep(0.1)


def is_active(_spark: SparkSession, name: str) -> bool:
    """Whether the query runs."""
    return bool(_queries[name].isActive)


def failure(_spark: SparkSession, name: str, seconds: int = 90) -> str:
    """The error with which the query fails within ``seconds``; empty if it does not fail."""
    with contextlib.suppress(StreamingQueryException):
        _queries[name].awaitTermination(seconds)
    return str(_queries[name].exception() or "")


def stop(_spark: SparkSession, name: str) -> None:
    """End the query."""
    _queries[name].stop()


def rows(_spark: SparkSession, folder: str) -> list[list[int]]:
    """The rows the sink received: key, count, value, nanoseconds from the scan until after the shuffle."""
    lines = [line for path in (Path(folder) / "results").iterdir() for line in path.read_text().splitlines()]
    return [[int(part) for part in line.split()] for line in lines]
