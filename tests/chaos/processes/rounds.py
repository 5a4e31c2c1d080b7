"""A pipeline of some rounds: Python on the executors, a shuffle, a join in SQL; all results go to a file in the end.

It goes on with rounds until it is told that there were enough, and the same round always gives the same. That two of
its drivers never run at the same time is noted, too.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession, functions as f

ROUNDS = 6
NUMBERS = 3_000


def keyed(number: int) -> tuple[int, int]:
    """A key for the shuffle, and the number doubled."""
    return number % 7, number * 2


def add(one: int, other: int) -> int:
    """Their sum."""
    return one + other


def result_of(spark: SparkSession, number: int) -> str:
    """One round."""
    twice = f.udf(lambda number: number * 2, "long")
    pairs = spark.sparkContext.parallelize(range(number, NUMBERS), 4).map(keyed)
    sums = sorted(pairs.reduceByKey(add).collect())
    frame = spark.range(NUMBERS).withColumn("key", f.col("id") % (number + 2)).withColumn("twice", twice("id"))
    rows = frame.groupBy("key").agg(f.sum("twice").alias("sum")).join(frame.groupBy("key").count(), "key")
    return f"{number} {sums} {sorted(tuple(row) for row in rows.collect())}"


def main(target: Path, progress: Path, hold: Path) -> None:
    """Write the results of all rounds to ``target``.

    ``progress`` gets a line for each round that is done. While ``hold`` is there, rounds are done again.
    """
    alone = os.open(target.with_name(f"{target.name}.alone"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        target.with_name(f"{target.name}.twice").touch()
        raise
    spark = SparkSession.builder.getOrCreate()
    lines: dict[int, str] = {}
    done = 0
    while done < ROUNDS or hold.exists():
        number = done % ROUNDS
        line = result_of(spark, number)
        if lines.setdefault(number, line) != line:
            raise AssertionError(f"round {number} gave {lines[number]} before, and now {line}")
        done += 1
        with progress.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.3)
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    staged.write_text("\n".join(lines[number] for number in range(ROUNDS)) + "\n")
    staged.replace(target)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
