"""Works hard, rests until it is told to go on, works hard again: ``up_and_down.py FLAGS``."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

FLAGS = Path(sys.argv[1])
TASKS = 8


def slow(number: int) -> int:
    """One task's work."""
    time.sleep(2)
    return number


def main() -> None:
    """Two bursts of work with a rest between them."""
    spark = SparkSession.builder.getOrCreate()
    total = 0
    for burst in (1, 2):
        numbers = spark.sparkContext.parallelize(range(TASKS), TASKS)
        # A shuffle, whose output dynamic allocation has to keep track of.
        total += sum(numbers.map(slow).map(lambda number: (number % 2, number)).reduceByKey(max).values().collect())
        (FLAGS / f"burst-{burst}").touch()
        while burst == 1 and not (FLAGS / "go-on").exists():
            time.sleep(0.1)
    sys.stdout.write(f"total {total}\n")
    spark.stop()


main()
