"""A sealed shuffle of SQL rows and one of Spark's own writers, read repeatedly by the plugin's reader."""

from __future__ import annotations

import base64
import collections
import random
import time
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # has no types
from pyspark.sql import SparkSession, functions as f

PARTITIONS = 5
MAPS = 4
FLOOD_SECONDS = 60.0
MARK = "four and twenty blackbirds"

_kept: dict[str, Any] = {}


def write(spark: SparkSession, rows: int) -> Any:
    """Write both shuffles and read them once; returns the number of records in each."""
    numbers = spark.range(rows, numPartitions=MAPS)
    texts = numbers.select("id", f.concat(f.lit(MARK), f.col("id").cast("string")).alias("text"))
    frame = texts.where("id % 7 < 4").repartition(PARTITIONS, f.col("id") % 3)  # so that some partitions are empty
    plan = frame._jdf.queryExecution().toRdd()
    _kept["rows"] = _handle(plan, "ShuffledRowRDD")
    pairs = spark.sparkContext.parallelize(range(rows), MAPS).map(lambda each: (each % 3, MARK + str(each)))
    grouped = pairs.partitionBy(PARTITIONS)
    _kept["rdd"] = _handle(grouped._jrdd.rdd(), "ShuffledRDD")
    _kept["frames"] = plan, grouped
    return [plan.count(), grouped.count()]


def count(_: SparkSession) -> Any:
    """Read both shuffles again as jobs do; returns the number of records in each."""
    plan, grouped = _kept["frames"]
    return [plan.count(), grouped.count()]


def _handle(rdd: Any, name: str) -> Any:
    while rdd.getClass().getSimpleName() != name:
        rdd = rdd.dependencies().head().rdd()
    return rdd.dependencies().head().shuffleHandle()


def _read(spark: SparkSession, handle: Any, first: int, end: int) -> int | None:
    """Read these partitions with the plugin's reader; returns the number of segments.

    Returns None if the driver says that there are none.
    """
    jvm: Any = spark.sparkContext._jvm
    sluice = jvm.org.apache.spark.shuffle.sluice
    found = 0
    outputs = sluice.MapOutputs.of(handle, 0, MAPS, first, end)
    if outputs.isEmpty():
        return None
    for number in range(outputs.size()):
        context = getattr(getattr(jvm.org.apache.spark, "TaskContext$"), "MODULE$").empty()
        reader = sluice.SegmentReader(outputs.apply(number), not handle.rows(), 8 << 20, context)
        try:
            while reader.next() is not None:
                found += 1
        finally:
            reader.close()
    return found


def read(spark: SparkSession) -> Any:
    """Count the segments of each shuffle, and remember the number for every range of partitions."""
    ranges = [(first, end) for first in range(PARTITIONS) for end in range(first + 1, PARTITIONS + 1)]
    _kept["right"] = {(name, *each): _read(spark, _kept[name], *each) for name in ("rows", "rdd") for each in ranges}
    return {name: _kept["right"][name, 0, PARTITIONS] for name in ("rows", "rdd")}


def believe(spark: SparkSession, reads: int, seed: int) -> Any:
    """Read from a worker that lies in each answer; returns what was believed, and the kinds of errors."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    believed: list[Any] = []
    errors = collections.Counter[str]()
    while len(believed) + errors.total() < reads:
        name = rng.choice(["rows", "rdd"])
        first = rng.randrange(PARTITIONS)
        end = rng.randint(first + 1, PARTITIONS)
        try:
            found = _read(spark, _kept[name], first, end)
        except Py4JJavaError as error:
            errors[error.java_exception.getClass().getSimpleName()] += 1
        else:
            if found is not None:
                believed.append([name, first, end, found])
    return {"believed": believed, "errors": dict(errors)}


def flooded(spark: SparkSession, credit: int) -> Any:
    """Request data from a worker and read none of it; returns whether the connection is still open."""
    jvm: Any = spark.sparkContext._jvm
    sluice = jvm.org.apache.spark.shuffle.sluice
    outputs = sluice.MapOutputs.of(_kept["rows"], 0, MAPS, 0, PARTITIONS).head()
    connection = sluice.Workers.get().fetchFrom(outputs.holders().head())
    number = outputs.allocation().shuffleNumber()
    request = connection.fetch(number, 0, PARTITIONS, outputs.maps(), True, credit)
    until = time.monotonic() + FLOOD_SECONDS
    while connection.isOpen() and time.monotonic() < until:
        time.sleep(0.05)
    request.close(False)
    return connection.isOpen()


def open_segment(spark: SparkSession, sealed: str, shuffle: int, place: list[int]) -> Any:
    """Have the plugin open a segment that was sealed elsewhere for this job.

    Returns its content and the count in its head: 0, or for a last segment the number of segments of its map
    and partition.
    """
    jvm: Any = spark.sparkContext._jvm
    sluice = jvm.org.apache.spark.shuffle.sluice
    opener = sluice.SegmentOpener(sluice.SealKeys.get(), shuffle)
    data = base64.b64decode(sealed)
    content = opener.open(*place, jvm.io.netty.buffer.Unpooled.wrappedBuffer(data), 0, len(data))
    found = jvm.java.util.Base64.getEncoder().encodeToString(
        jvm.java.util.Arrays.copyOf(content.array(), content.remaining())
    )
    return [found, opener.lastCount()]
