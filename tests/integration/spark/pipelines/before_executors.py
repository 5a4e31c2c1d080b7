"""A test pipeline: reports that its SparkContext is up, and where the tasks of its first stage ran."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

context = SparkSession.builder.getOrCreate().sparkContext
shared, barrier = Path(sys.argv[1]), sys.argv[2] == "barrier"
(shared / "parallelism").write_text(str(context.defaultParallelism))
(shared / "up").touch()
rows = context.parallelize(range(2), 2)
stage = rows.barrier() if barrier else rows
where = stage.mapPartitions(lambda _: [os.getcwd()]).collect()  # noqa: PTH109  # of its executor
(shared / "where").write_text(json.dumps(where))
