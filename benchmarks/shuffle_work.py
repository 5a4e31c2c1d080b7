"""The pipeline that :mod:`benchmarks.shuffle` measures: a global sort and a wide groupBy of the same rows.

Each input line is a number of rows. The pipeline answers with the total seconds of both. Rows are cheap to generate,
half of their bytes are random, and they are wide, so that the time is mostly that of the shuffle. With narrow rows, the
sort and the hash table would cost many times as much as moving the data.
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
"""The size of a row as Spark shuffles it: null bits, the key, the offsets of the two columns, and the columns."""
ROUNDS_SHUFFLE_ROWS = 2
"""Both the sort and the groupBy shuffle every row."""


def _place(among: int) -> Column:
    """Return the 1-based offset of a row's column in the source bytes."""
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
        # Keys are unique, so partial aggregation combines nothing before the shuffle.
        wide = rows.groupBy("key").agg(*(f.max(name) for name in rows.columns if name != "key"))
        wide.write.format("noop").mode("overwrite").save()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
