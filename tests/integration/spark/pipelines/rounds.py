"""A test pipeline: one round of work for every file ``go-N``, until ``stop`` appears.

A round is a Python UDF and a shuffle. The result of round N is written to ``result-N`` as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession, functions as f
from pyspark.sql.types import IntegerType


def remainder(number: int) -> int:
    return number % 7


def counts(spark: SparkSession, rows: int) -> dict[str, int]:
    rest = f.udf(remainder, IntegerType())
    frame = spark.range(rows, numPartitions=4).withColumn("rest", rest("id"))
    return {str(row["rest"]): row["count"] for row in frame.repartition(4, "id").groupBy("rest").count().collect()}


spark = SparkSession.builder.getOrCreate()
folder = Path(sys.argv[1])
number = 1
while not (folder / "stop").exists():
    order = folder / f"go-{number}"
    if order.exists():
        result = folder / f"result-{number}.part"
        result.write_text(json.dumps(counts(spark, 10_000)))
        result.rename(folder / f"result-{number}")
        number += 1
    time.sleep(0.05)
