"""A pipeline for a whole cluster: shuffles, waits for permission, reads the same shuffle again.

Arguments: a folder. Writes ``first``, waits for ``go``, writes ``second``. Both files contain sums by key.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

WAIT_SECONDS = 120


def main() -> None:
    """Run the pipeline."""
    folder = Path(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    numbers = spark.range(200_000, numPartitions=6).repartition(7, "id")
    pairs = numbers.rdd.map(lambda row: (row.id % 13, row.id))
    (folder / "first").write_text(json.dumps(sorted(pairs.groupByKey(4).mapValues(sum).collect())))
    deadline = time.monotonic() + WAIT_SECONDS
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    # The rows are where the first repartition left them; the second shuffle is a new one.
    (folder / "second").write_text(json.dumps(sorted(pairs.groupByKey(5).mapValues(sum).collect())))
    spark.stop()


if __name__ == "__main__":
    main()
