"""A pipeline of some rounds: each doubles numbers on the executors and shuffles; the sums go to a file in the end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

ROUNDS = 4
NUMBERS = 5_000


def keyed(number: int) -> tuple[int, int]:
    """A key for the shuffle, and the number doubled."""
    return number % 7, number * 2


def add(one: int, other: int) -> int:
    """Return the sum of two numbers."""
    return one + other


def main(target: Path, running: Path) -> None:
    """Write the sums of all rounds to ``target``; ``running`` gets a line when the first round is done."""
    spark = SparkSession.builder.getOrCreate()
    context = spark.sparkContext
    sums = []
    for number in range(ROUNDS):
        pairs = context.parallelize(range(NUMBERS), 4).map(keyed)
        sums.append(sorted(pairs.reduceByKey(add).collect()))
        with running.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.5)
    target.write_text("\n".join(map(str, sums)) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
