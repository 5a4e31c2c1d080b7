"""A pipeline that computes with a shuffle on request: ``neighbour.py PORT``."""

from __future__ import annotations

import socket
import sys

from pyspark.sql import SparkSession, functions as f


def main() -> None:
    """For each number of rows received, return a sum over groups, until the connection ends."""
    spark = SparkSession.builder.getOrCreate()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection, connection.makefile("rw") as lines:
        for line in lines:
            rows = spark.range(int(line), numPartitions=4)
            groups = rows.groupBy((f.col("id") % 97).alias("key")).agg(f.sum("id").alias("part"))
            (total,) = groups.agg(f.sum("part")).collect()[0]
            lines.write(f"{total}\n")
            lines.flush()
    spark.stop()


if __name__ == "__main__":
    main()
