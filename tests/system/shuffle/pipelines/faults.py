"""A shuffle in two steps, so that something can go wrong between them; counts the attempts of its maps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import RDD, TaskContext
from pyspark.sql import SparkSession

MAPS = 6
ROWS_PER_MAP = 3000

_kept: dict[str, RDD[Any]] = {}


def write(spark: SparkSession, name: str, folder: str, sql: bool) -> Any:
    """Run the maps of a shuffle and read it once; returns the same as :func:`read`."""

    def rows(index: int, numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
        task = TaskContext.get()
        assert task is not None
        Path(folder, f"{name}-{index}-{task.taskAttemptId()}").touch()
        for number in numbers:
            yield number, hashlib.sha256(f"{name} {number}".encode()).hexdigest() * 4

    made = spark.sparkContext.parallelize(range(MAPS * ROWS_PER_MAP), MAPS).mapPartitionsWithIndex(rows)
    if sql:
        shuffled = made.toDF("id long, text string").repartition(5, "id")
        # The plan of one frame: asked again, it would shuffle again.
        _kept[name] = shuffled.rdd.map(tuple)
    else:
        _kept[name] = made.partitionBy(5)
    return read(spark, name, folder)


def read(_: SparkSession, name: str, folder: str) -> Any:
    """Read the shuffle again.

    Returns the number of rows, a digest of them, and the number of map attempts so far.
    """
    found = sorted(_kept[name].collect())
    attempts = len(list(Path(folder).glob(f"{name}-*")))
    return [len(found), hashlib.sha256(repr(found).encode()).hexdigest(), attempts]
