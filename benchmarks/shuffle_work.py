"""The pipeline that :mod:`benchmarks.shuffle` measures: a global sort and a wide groupBy of the same rows.

Each line of its input is a number of rows; answers with the seconds the two took together. Rows are made by the CPU
in no time, half of their bytes random and half not, so that little else than the shuffle is measured.
"""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

MAPS = 16
ROW_BYTES = 8 + 9 * 8
"""Of a row as Spark shuffles it: null bits, key, eight columns."""
ROUNDS_SHUFFLE_ROWS = 2
"""Both the sort and the groupBy shuffle every row."""


def main() -> None:
    """Run rounds until the input ends."""
    spark = SparkSession.builder.getOrCreate()
    for line in sys.stdin:
        count = int(line)
        random = [f.xxhash64("id", f.lit(n)).alias(f"r{n}") for n in range(4)]
        regular = [(f.col("id") % (n + 5) * 1000).alias(f"c{n}") for n in range(4)]
        rows = spark.range(count, numPartitions=MAPS).select(f.xxhash64("id").alias("key"), *random, *regular)
        start = time.perf_counter()
        rows.sort("key").write.format("noop").mode("overwrite").save()
        # Every key is there once: nothing is combined before the shuffle, whatever Spark tries.
        wide = rows.groupBy("key").agg(*(f.max(name) for name in rows.columns if name != "key"))
        wide.write.format("noop").mode("overwrite").save()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
