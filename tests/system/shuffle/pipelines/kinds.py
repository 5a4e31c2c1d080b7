"""Every kind of shuffle in Spark, each with an answer that every shuffle implementation must give."""

from __future__ import annotations

import hashlib
import json
import operator
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions as f

ROWS = 60_000


def _rows(spark: SparkSession, rows: int = ROWS, partitions: int = 6) -> DataFrame:
    return (
        spark.range(rows, numPartitions=partitions)
        .withColumn("key", f.col("id") % 997)
        .withColumn("text", f.sha2(f.col("id").cast("string"), 256))
        .withColumn("amount", (f.col("id") * 7919 % 10007).cast("decimal(12,2)"))
    )


def _digest(frame: DataFrame) -> list[str]:
    """The number of rows and the sum of their hashes, which do not depend on their order."""
    hashed = frame.select(f.xxhash64(*frame.columns).cast("decimal(38,0)").alias("hash"))
    total = hashed.agg(f.count("*"), f.sum("hash")).collect()[0]
    return [str(value) for value in total]


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def _set(spark: SparkSession, **settings: str) -> dict[str, str | None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    return before


def group(spark: SparkSession) -> Any:
    """SQL aggregation."""
    grouped = _rows(spark).groupBy("key").agg(f.count("*"), f.max("text"), f.sum("amount"))
    return _digest(grouped)


def sql_distinct(spark: SparkSession) -> Any:
    """SQL ``distinct`` and ``count(distinct)``."""
    rows = _rows(spark)
    return _digest(rows.select("key", f.substring("text", 1, 2)).distinct()), rows.agg(
        f.countDistinct("key", f.substring("text", 1, 1))
    ).collect()[0][0]


def sort(spark: SparkSession) -> Any:
    """A global sort; the answer depends on the order."""
    ordered = _rows(spark).orderBy("text").select("id", "text").collect()
    return hashlib.sha256(repr([tuple(row) for row in ordered]).encode()).hexdigest()


def window(spark: SparkSession) -> Any:
    """Rank rows within groups."""
    _rows(spark).createOrReplaceTempView("rows")
    return _digest(spark.sql("select id, rank() over (partition by key order by text) as rank from rows"))


def repartition(spark: SparkSession) -> Any:
    """Repartition round robin, by hash, by range, and into more partitions than a map has rows."""
    rows = _rows(spark)
    return [
        _digest(rows.repartition(13)),
        _digest(rows.repartition(400, "key")),
        _digest(rows.repartitionByRange(9, "text")),
        rows.coalesce(2).repartition(3).rdd.getNumPartitions(),
    ]


def join(spark: SparkSession) -> Any:
    """Sort-merge, left outer, semi and anti joins."""
    rows = _rows(spark)
    other = rows.where("key % 3 = 0").select("key", f.col("text").alias("other"))
    before = _set(spark, **{"spark.sql.autoBroadcastJoinThreshold": "-1"})
    try:
        kinds = ["inner", "left_outer", "left_semi", "left_anti"]
        few = rows.where("id < 3000")
        return [_digest(few.join(other.where("key < 30"), "key", kind)) for kind in kinds]
    finally:
        _restore(spark, before)


def _restore(spark: SparkSession, before: dict[str, str | None]) -> None:
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def skew_join(spark: SparkSession) -> Any:
    """A join in which adaptive execution splits a partition, which reads partial map ranges.

    The last value tells whether it did.
    """
    before = _set(
        spark,
        **{
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "64k",
            "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
            "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k",
            "spark.sql.shuffle.partitions": "20",
        },
    )
    try:
        left = _rows(spark).withColumn("key", f.when(f.col("id") % 5 < 4, f.lit(7)).otherwise(f.col("key")))
        right = spark.range(997).withColumnRenamed("id", "key").withColumn("name", f.col("key").cast("string"))
        joined = left.join(right, "key").select("id", "key", "text", "name")
        rows = sorted(tuple(row) for row in joined.collect())
        return hashlib.sha256(repr(rows).encode()).hexdigest(), len(rows), "skew=true" in _plan(joined)
    finally:
        _restore(spark, before)


def local_read(spark: SparkSession) -> Any:
    """A join that becomes a broadcast join at run time, which reads whole maps.

    The last value tells whether it did.
    """
    before = _set(
        spark, **{"spark.sql.adaptive.autoBroadcastJoinThreshold": "10m", "spark.sql.autoBroadcastJoinThreshold": "-1"}
    )
    try:
        rows = _rows(spark)
        few = rows.where("id % 1000 = 3").select("key", f.col("id").alias("other"))
        joined = rows.join(few, "key").select("id", "other")
        collected = sorted(tuple(row) for row in joined.collect())
        return hashlib.sha256(repr(collected).encode()).hexdigest(), len(collected), "local" in _plan(joined)
    finally:
        _restore(spark, before)


def empty(spark: SparkSession) -> Any:
    """Shuffle no rows, rows in only one of many partitions, and rows without columns."""
    rows = _rows(spark)
    return [
        _digest(rows.where("id < 0").groupBy("key").count()),
        _digest(rows.where("id = 5").repartition(50, "key")),
        spark.sparkContext.parallelize([], 4).groupBy(lambda x: x).count(),
        rows.select().repartition(3).count(),
        _digest(rows.where("id < 0").repartition(3)),
    ]


def giant_records(spark: SparkSession) -> Any:
    """Rows and records larger than a buffer, a frame and a segment."""

    def values(index: int, _: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        for number, size in enumerate([70_000, 2_000_000, 9_500_000, 3 << 20, 10]):
            block = hashlib.sha512(f"{index}-{number}".encode()).digest()
            pieces = [hashlib.sha512(block + bytes([n % 251])).digest() for n in range(size // 640 + 1)]
            yield index * 10 + number, (b"".join(pieces) * 11)[:size]

    records = spark.sparkContext.parallelize(range(3), 3).mapPartitionsWithIndex(values)
    frame = records.toDF("id long, data binary")
    grouped = records.map(lambda record: (record[0] % 2, record[1])).groupByKey(2)
    return [
        sorted(tuple(row) for row in frame.repartition(4, "id").select("id", f.sha2("data", 256)).collect()),
        sorted((key, sorted(hashlib.sha256(each).hexdigest() for each in found)) for key, found in grouped.collect()),
    ]


def rdd_reduce(spark: SparkSession) -> Any:
    """An RDD reduce, which combines on the map side."""
    pairs = spark.sparkContext.parallelize(range(ROWS), 6).map(lambda n: (n % 101, n))
    return sorted(pairs.reduceByKey(operator.add, 7).collect())


def rdd_group(spark: SparkSession) -> Any:
    """An RDD grouping, which does not combine on the map side."""
    pairs = spark.sparkContext.parallelize(range(ROWS), 6).map(lambda n: (n % 53, n))
    return sorted((key, len(values), sum(values)) for key, values in pairs.groupByKey(300).mapValues(list).collect())


def rdd_sort(spark: SparkSession) -> Any:
    """An RDD sort, which sorts in the reducers."""
    numbers = spark.sparkContext.parallelize(range(ROWS), 6).map(lambda n: n * 7919 % 1000003)
    found = numbers.sortBy(lambda n: -n, numPartitions=5).collect()
    return [found == sorted(found, reverse=True), hashlib.sha256(repr(found).encode()).hexdigest()]


def rdd_join(spark: SparkSession) -> Any:
    """RDD join, cogroup, distinct and intersection."""
    context = spark.sparkContext
    left = context.parallelize(range(3000), 4).map(lambda n: (n % 301, n))
    right = context.parallelize(range(0, 3000, 7), 3).map(lambda n: (n % 301, str(n)))
    return [
        len(left.join(right).collect()),
        sorted((key, len(list(a)), len(list(b))) for key, (a, b) in left.cogroup(right).collect())[:20],
        sorted(left.keys().distinct().collect())[-3:],
        sorted(left.keys().intersection(right.keys()).collect())[:5],
    ]


def jvm_sort(spark: SparkSession) -> Any:
    """Repartition an RDD of the JVM, which uses Java serialization."""
    rdd = spark.range(5000, numPartitions=4)._jdf.javaRDD()
    return rdd.repartition(7).count()


def zstandard(spark: SparkSession) -> Any:
    """A plain repartition, for a run with another codec.

    The codec is a Spark setting of the whole application.
    """
    return _digest(_rows(spark).repartition(5, "text"))


def speculation(spark: SparkSession, folder: str) -> Any:
    """Speculative execution: one map hangs in its first attempt, and another attempt replaces it.

    The last value is the number of attempts of that map.
    """

    def slow(index: int, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        task = TaskContext.get()
        assert task is not None
        Path(folder, f"{index}-{task.attemptNumber()}").touch()
        waits = index == 1 and task.attemptNumber() == 0
        deadline = time.monotonic() + 60
        for number in numbers:
            # It has pushed some by then, and goes on beside the other.
            while waits and number % 5000 > 4000 and not Path(folder, "1-1").exists():
                waits = time.monotonic() < deadline
                time.sleep(0.05)
            yield number % 11, number

    pairs = spark.sparkContext.parallelize(range(20_000), 4).mapPartitionsWithIndex(slow)
    total = sorted((key, sum(values)) for key, values in pairs.groupByKey(3).collect())
    return total, len(list(Path(folder).glob("1-*")))


def streaming(spark: SparkSession, folder: str) -> Any:
    """A stateful streaming aggregation over micro-batches."""
    source = Path(folder, "source")
    source.mkdir()
    for number in range(3):
        lines = [json.dumps({"key": n % 17, "n": n * (number + 1)}) for n in range(400)]
        (source / f"{number}.json").write_text("\n".join(lines))
    read = spark.readStream.schema("key int, n long").option("maxFilesPerTrigger", 1).json(str(source))
    query = (
        read.groupBy("key")
        .agg(f.sum("n").alias("total"), f.count("*").alias("rows"))
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("totals")
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(tuple(row) for row in spark.sql("select * from totals").collect())


def huge_partition(spark: SparkSession, rows: int) -> Any:
    """Shuffle ``rows`` times 128 random bytes into one partition.

    Returns sums of row hashes before and after the shuffle.
    """
    columns = [f.xxhash64("id", f.lit(n)).alias(f"c{n}") for n in range(16)]
    made = spark.range(rows, numPartitions=4).select(*columns)
    return [_digest(made), _digest(made.repartition(1))]


def real_time(spark: SparkSession, folder: str) -> Any:
    """The error of a real-time query with a shuffle, which must not run without the shuffle service."""
    jvm = spark._jvm
    assert jvm is not None
    sources = jvm.org.apache.spark.sql.execution.streaming.sources
    stream = sources.LowLatencyMemoryStream.apply(spark._jsparkSession, 1, jvm.org.apache.spark.sql.Encoders.LONG())
    counts = DataFrame(stream.toDF(), spark).groupBy("value").count()
    query = counts.writeStream.outputMode("update").format("console").option("checkpointLocation", folder)
    running = query.trigger(realTime="5 seconds").start()  # type: ignore[call-overload]  # not in the stubs
    try:
        running.awaitTermination(60)
    except Exception as error:  # noqa: BLE001  # its text is the answer
        return str(error)
    running.stop()
    return "it ran"
