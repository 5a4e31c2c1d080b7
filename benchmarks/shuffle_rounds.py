"""The pipeline that :mod:`benchmarks.spark_tls` measures: one shuffle for each number of rows that it reads.

It answers each input line with a line that has the seconds of the shuffle.
"""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession, functions as f

PARTITIONS = 4


def main() -> None:
    """Run rounds until the input ends."""
    spark = SparkSession.builder.getOrCreate()
    for line in sys.stdin:
        rows = spark.range(int(line), numPartitions=PARTITIONS).withColumn(
            "payload", f.sha2(f.col("id").cast("string"), 256)
        )
        shuffled = rows.repartition(PARTITIONS, "id").groupBy((f.col("id") % 1000).alias("key")).agg(f.max("payload"))
        start = time.perf_counter()
        shuffled.write.format("noop").mode("overwrite").save()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
