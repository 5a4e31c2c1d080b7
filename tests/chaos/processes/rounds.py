"""A pipeline of some rounds: Python on the executors, a shuffle, a join in SQL; all results go to a file in the end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

ROUNDS = 6
NUMBERS = 3_000


def keyed(number: int) -> tuple[int, int]:
    """A key for the shuffle, and the number doubled."""
    return number % 7, number * 2


def add(one: int, other: int) -> int:
    """Their sum."""
    return one + other


def main(target: Path, progress: Path) -> None:
    """Write the results of all rounds to ``target``; ``progress`` gets a line for each round that is done."""
    spark = SparkSession.builder.getOrCreate()
    twice = f.udf(lambda number: number * 2, "long")
    lines = []
    for number in range(ROUNDS):
        pairs = spark.sparkContext.parallelize(range(number, NUMBERS), 4).map(keyed)
        sums = sorted(pairs.reduceByKey(add).collect())
        frame = spark.range(NUMBERS).withColumn("key", f.col("id") % (number + 2)).withColumn("twice", twice("id"))
        rows = frame.groupBy("key").agg(f.sum("twice").alias("sum")).join(frame.groupBy("key").count(), "key")
        lines.append(f"{number} {sums} {sorted(tuple(row) for row in rows.collect())}")
        with progress.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.3)
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    staged.write_text("\n".join(lines) + "\n")
    staged.replace(target)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
