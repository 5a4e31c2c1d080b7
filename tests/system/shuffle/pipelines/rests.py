"""A pipeline for a whole cluster: writes a shuffle, waits for permission, reads it again in new tasks.

Arguments: a folder. Touches ``map-N-ATTEMPT`` for each map attempt, writes ``first``, waits for ``go``,
writes ``second``. Both files contain sums by key.
"""

from __future__ import annotations

import json
import operator
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

WAIT_SECONDS = 120
MAPS = 4


def main() -> None:
    """Run the pipeline."""
    folder = Path(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()

    def pairs(index: int, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        task = TaskContext.get()
        assert task is not None
        Path(folder, f"map-{index}-{task.taskAttemptId()}").touch()
        return ((number % 13, number) for number in numbers)

    made = spark.sparkContext.parallelize(range(100_000), MAPS).mapPartitionsWithIndex(pairs)
    shuffled = made.reduceByKey(operator.add, 5)
    (folder / "first").write_text(json.dumps(sorted(shuffled.collect())))
    deadline = time.monotonic() + WAIT_SECONDS
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    (folder / "second").write_text(json.dumps(sorted(shuffled.mapValues(lambda total: total).collect())))
    spark.stop()


if __name__ == "__main__":
    main()
