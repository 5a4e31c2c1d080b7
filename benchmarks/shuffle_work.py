"""The pipeline that :mod:`benchmarks.shuffle` measures: a global sort and a wide groupBy of the same rows.

Each line of its input is a number of rows; answers with the seconds the two took together. Rows are made by the CPU
in no time, half of their bytes random and half not, and are wide, so that little else than the shuffle is measured:
of narrow rows the sort and the hash table cost many times what moving them does.
"""

from __future__ import annotations

import sys
import time
from random import Random

from pyspark.sql import Column, SparkSession, functions as f

MAPS = 16
COLUMN_BYTES = 240
NOISE_BYTES = 1 << 18
PATTERN_BYTES = 16
ROW_BYTES = 8 + 3 * 8 + 2 * COLUMN_BYTES
"""Of a row as Spark shuffles it: null bits, the key, where the two columns are, and these."""
ROUNDS_SHUFFLE_ROWS = 2
"""Both the sort and the groupBy shuffle every row."""


def _place(among: int) -> Column:
    """Where a row's column begins, counted from one."""
    return f.pmod("key", f.lit(among)).cast("int") + 1


def main() -> None:
    """Run rounds until the input ends."""
    spark = SparkSession.builder.getOrCreate()
    noise = f.lit(Random(1).randbytes(NOISE_BYTES))  # noqa: S311  # nothing secret, only incompressible
    pattern = f.lit(bytes(range(PATTERN_BYTES)) * (COLUMN_BYTES // PATTERN_BYTES + 1))
    columns = [
        f.substring(noise, _place(NOISE_BYTES - COLUMN_BYTES), COLUMN_BYTES).alias("random"),
        f.substring(pattern, _place(PATTERN_BYTES), COLUMN_BYTES).alias("regular"),
    ]
    for line in sys.stdin:
        keys = spark.range(int(line), numPartitions=MAPS).select(f.xxhash64("id").alias("key"))
        rows = keys.select("key", *columns)
        start = time.perf_counter()
        rows.sort("key").write.format("noop").mode("overwrite").save()
        # Every key is there once: nothing is combined before the shuffle, whatever Spark tries.
        wide = rows.groupBy("key").agg(*(f.max(name) for name in rows.columns if name != "key"))
        wide.write.format("noop").mode("overwrite").save()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
