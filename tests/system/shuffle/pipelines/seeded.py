"""Shuffles whose rows come from a seed, and their expected answers, computed without Spark.

A job is a mapping: ``kind``, ``seed``, ``rows``, ``maps``, ``partitions``, ``width`` (bytes of the text of
a row) and ``skew`` (how many of ten rows have the same key). :func:`expected` computes the answer with
loops over lists.
"""

from __future__ import annotations

import collections
import hashlib
import operator
import sys
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from pyspark import RDD, cloudpickle
from pyspark.sql import DataFrame, SparkSession, functions as f

KEYS = 211
COMMON_KEY = 7
SCHEMA = "number long, key long, amount long, text string"
SETTINGS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "64k",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "128k",
}

Row = tuple[int, int, int, str]
_kept: dict[str, RDD[Any]] = {}


def row(seed: int, number: int, skew: int, width: int) -> Row:
    """One row of the input."""
    chance = zlib.crc32(f"{seed} {number}".encode())
    key = COMMON_KEY if chance % 10 < skew else chance // 10 % KEYS
    digest = hashlib.sha256(f"{seed}-{number}".encode()).hexdigest()
    return number, key, chance % 10007, (digest * (width // len(digest) + 1))[:width]


def write(spark: SparkSession, job: dict[str, Any]) -> str:
    """Shuffle the rows and read them; the shuffle is kept for :func:`read`."""
    for key, value in {**SETTINGS, "spark.sql.shuffle.partitions": str(job["partitions"])}.items():
        spark.conf.set(key, value)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    seed, skew, width = job["seed"], job["skew"], job["width"]
    numbers = spark.sparkContext.parallelize(range(job["rows"]), job["maps"])
    rows = numbers.map(lambda number: row(seed, number, skew, width))
    _kept["rdd"] = KINDS[job["kind"]][0](rows, rows.toDF(SCHEMA), job["partitions"])
    return read(spark, job)


def read(_: SparkSession, job: dict[str, Any]) -> str:
    """Read the shuffle of the last :func:`write` again."""
    return _digest(job, _kept["rdd"].collect())


def expected(job: dict[str, Any]) -> str:
    """The answer that both :func:`write` and :func:`read` must give."""
    rows = [row(job["seed"], number, job["skew"], job["width"]) for number in range(job["rows"])]
    return _digest(job, KINDS[job["kind"]][1](rows))


def _digest(job: dict[str, Any], found: Iterable[Any]) -> str:
    """A digest of the rows, in their order for the kinds that sort, otherwise sorted."""
    plain = [_plain(each) for each in found]
    if not job["kind"].endswith("sort"):
        plain.sort()
    return hashlib.sha256(repr(plain).encode()).hexdigest() + f" of {len(plain)}"


def _plain(value: Any) -> Any:
    return tuple(_plain(each) for each in value) if isinstance(value, list | tuple) else value


def _sort(_: RDD[Row], frame: DataFrame, __: int) -> RDD[Any]:
    return frame.orderBy("text", "number").rdd


def _sort_expected(rows: list[Row]) -> list[Any]:
    return sorted(rows, key=lambda each: (each[3], each[0]))


def _repartition(_: RDD[Row], frame: DataFrame, partitions: int) -> RDD[Any]:
    return frame.repartition(partitions, "number").rdd


def _group(_: RDD[Row], frame: DataFrame, __: int) -> RDD[Any]:
    return frame.groupBy("key").agg(f.count("*"), f.sum("amount"), f.max("text"), f.min("text"), f.min("number")).rdd


def _group_expected(rows: list[Row]) -> list[Any]:
    return [
        (
            key, len(found), sum(each[2] for each in found), max(each[3] for each in found),
            min(each[3] for each in found), min(each[0] for each in found),
        )
        for key, found in _by_key(rows).items()
    ]  # fmt: skip


def _join(rows: RDD[Row], frame: DataFrame, _: int) -> RDD[Any]:
    names = (
        rows.context.parallelize(range(0, KEYS, 2), 3)
        .map(lambda key: (key, f"name {key}"))
        .toDF("key long, name string")
    )
    return frame.join(names, "key").select("number", "key", "text", "name").rdd


def _join_expected(rows: list[Row]) -> list[Any]:
    return [(number, key, text, f"name {key}") for number, key, _, text in rows if key < KEYS and key % 2 == 0]


def _rdd_reduce(rows: RDD[Row], _: DataFrame, partitions: int) -> RDD[Any]:
    return rows.map(lambda each: ((each[1], each[2] % 50), each[2])).reduceByKey(operator.add, partitions)


def _rdd_reduce_expected(rows: list[Row]) -> list[Any]:
    sums: dict[tuple[int, int], int] = collections.defaultdict(int)
    for _, key, amount, _ in rows:
        sums[key, amount % 50] += amount
    return list(sums.items())


def _rdd_group(rows: RDD[Row], _: DataFrame, partitions: int) -> RDD[Any]:
    grouped = rows.map(lambda each: (each[1], (each[0], each[3]))).groupByKey(partitions)
    return grouped.mapValues(sorted)


def _rdd_group_expected(rows: list[Row]) -> list[Any]:
    return [(key, sorted((each[0], each[3]) for each in found)) for key, found in _by_key(rows).items()]


def _rdd_sort(rows: RDD[Row], _: DataFrame, partitions: int) -> RDD[Any]:
    return rows.sortBy(lambda each: (each[3], each[0]), numPartitions=partitions)


def _by_key(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = collections.defaultdict(list)
    for each in rows:
        found[each[1]].append(each)
    return found


KINDS: dict[str, tuple[Callable[[RDD[Row], DataFrame, int], RDD[Any]], Callable[[list[Row]], list[Any]]]] = {
    "sort": (_sort, _sort_expected),
    "repartition": (_repartition, list),
    "group": (_group, _group_expected),
    "join": (_join, _join_expected),
    "rdd_reduce": (_rdd_reduce, _rdd_reduce_expected),
    "rdd_group": (_rdd_group, _rdd_group_expected),
    "rdd_sort": (_rdd_sort, _sort_expected),
}
