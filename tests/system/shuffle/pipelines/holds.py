"""A pipeline whose tasks run until they are told to end.

Arguments: a folder and a number of tasks. Each task touches ``task-N-ATTEMPT``, waits for ``go``, and
returns its number. The pipeline writes their sum to ``sum``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

WAIT_SECONDS = 900


def main() -> None:
    """Run the tasks and write their sum."""
    folder, tasks = Path(sys.argv[1]), int(sys.argv[2])
    spark = SparkSession.builder.getOrCreate()

    def hold(number: int) -> int:
        task = TaskContext.get()
        assert task is not None
        (folder / f"task-{number}-{task.taskAttemptId()}").touch()
        deadline = time.monotonic() + WAIT_SECONDS
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return number

    total = sum(spark.sparkContext.parallelize(range(tasks), tasks).map(hold).collect())
    (folder / "sum").write_text(str(total))
    spark.stop()


if __name__ == "__main__":
    main()
