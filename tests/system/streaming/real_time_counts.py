"""A pipeline in real-time mode: counts numbers by key, with a shuffle.

Its source is in the driver's memory. So each attempt first gives the source again what the file ``given``
says, number after number, which puts each number where it was before.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

KEYS = 8
SOURCES = 2
LONG = 1 << 40
"""Added to each number: py4j makes an Integer of a small one, which the source does not take."""


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
            self._file.write(f"{row[0]} {row[1]}\n")

        def close(self, _error: Exception | None) -> None:
            self._file.close()

    return Files()


def main(folder: Path) -> None:
    """Count until the file ``stop`` is there."""
    spark = SparkSession.builder.getOrCreate()
    jvm: Any = spark._jvm
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    states = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", states)
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    memory = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
    stream = memory.apply(spark._jsparkSession, SOURCES, jvm.org.apache.spark.sql.Encoders.LONG())
    given = 0

    def give() -> None:
        nonlocal given
        wanted = int((folder / "given").read_text() or given)
        while given < wanted:
            one = jvm.java.util.ArrayList()
            one.add(LONG + given)
            stream.addData(jvm.org.apache.spark.api.python.PythonUtils.toSeq(one))
            given += 1

    give()
    numbers = DataFrame(stream.toDF(), spark).selectExpr(f"value % {KEYS} as k")
    writer = numbers.groupBy("k").count().writeStream.outputMode("update").queryName("counts")
    writer = writer.foreach(sink(str(folder / "results")))
    query = writer.trigger(realTime="5 seconds").start()  # type: ignore[call-overload]  # not in the stubs
    while not (folder / "stop").exists():
        give()
        if query.awaitTermination(0.1):
            break
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
