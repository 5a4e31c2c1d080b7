"""A pipeline of several rounds: Python on the executors, a shuffle, and a join in SQL.

It repeats the rounds until the test tells it to finish, and checks that a repeated round gives the same
result. At the end, it writes all results to a file. It also detects whether two of its drivers run at the
same time.
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
    """Return a key for the shuffle, and the doubled number."""
    return number % 7, number * 2


def add(one: int, other: int) -> int:
    """Return the sum."""
    return one + other


def result_of(spark: SparkSession, number: int) -> str:
    """Run round ``number``, and return its result as text."""
    twice = f.udf(lambda number: number * 2, "long")
    pairs = spark.sparkContext.parallelize(range(number, NUMBERS), 4).map(keyed)
    sums = sorted(pairs.reduceByKey(add).collect())
    frame = spark.range(NUMBERS).withColumn("key", f.col("id") % (number + 2)).withColumn("twice", twice("id"))
    rows = frame.groupBy("key").agg(f.sum("twice").alias("sum")).join(frame.groupBy("key").count(), "key")
    return f"{number} {sums} {sorted(tuple(row) for row in rows.collect())}"


def main(target: Path, progress: Path, hold: Path) -> None:
    """Run the rounds, and write the results of all of them to ``target``.

    ``progress`` gets a line for each completed round. As long as the file ``hold`` exists, the rounds are
    repeated.
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
