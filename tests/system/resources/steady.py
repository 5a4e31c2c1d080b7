"""A pipeline that keeps shuffle output it needs until the end: ``steady.py FLAGS``."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

FLAGS = Path(sys.argv[1])


def main() -> None:
    """Shuffle once, wait until told to go on, then read the same shuffle output again."""
    spark = SparkSession.builder.getOrCreate()
    pairs = spark.sparkContext.parallelize(range(4000), 8).map(lambda number: (number % 100, number))
    sums = pairs.reduceByKey(lambda one, other: one + other, 8)
    first = sorted(sums.collect())
    (FLAGS / "shuffled").touch()
    while not (FLAGS / "go-on").exists():
        time.sleep(0.1)
    again = sorted(sums.collect())
    sys.stdout.write(f"equal {first == again}, groups {len(again)}\n")
    spark.stop()


main()
