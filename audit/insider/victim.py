"""The insider audit's other job: it only exists, with an executor, a Python worker, data and a secret."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def _stay(rows: Any) -> Any:  # noqa: ANN401  an iterator of whatever
    os.environ["SLUICE_VICTIM_SECRET"] = sys.argv[0]
    time.sleep(float(os.environ.get("SLUICE_VICTIM_SECONDS", "900")))
    yield from rows


def main() -> None:
    """Leave shuffle files behind, and stay until somebody cancels the job, or for a quarter of an hour."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("insider-victim").getOrCreate()
    context = spark.sparkContext
    context.parallelize(range(1000), 2).map(lambda n: (n % 7, n)).groupByKey().count()
    print("the victim stays", flush=True)  # noqa: T201  a pipeline prints
    context.parallelize([0], 1).mapPartitions(_stay).collect()


if __name__ == "__main__":
    main()
