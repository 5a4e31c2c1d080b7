"""The pipeline that :mod:`benchmarks.isolation` measures: a shuffle for each number of rows that it receives.

It connects to the unix socket in its first argument, and answers each line with the seconds that the shuffle took. In
this way two jobs can take turns, even if they see different files.
"""

from __future__ import annotations

import socket
import sys
import time

from pyspark.sql import SparkSession, functions as f

PARTITIONS = 4


def main() -> None:
    """Run rounds until the connection ends."""
    spark = SparkSession.builder.getOrCreate()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        lines = connection.makefile("rw")
        for line in lines:
            rows = spark.range(int(line), numPartitions=PARTITIONS).withColumn(
                "payload", f.sha2(f.col("id").cast("string"), 256)
            )
            grouped = rows.repartition(PARTITIONS, "id").groupBy((f.col("id") % 1000).alias("key"))
            start = time.perf_counter()
            grouped.agg(f.max("payload")).write.format("noop").mode("overwrite").save()
            lines.write(f"{time.perf_counter() - start}\n")
            lines.flush()
    spark.stop()


if __name__ == "__main__":
    main()
