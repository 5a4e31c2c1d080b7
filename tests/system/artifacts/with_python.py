"""Tell which Python runs the driver and its executors, and use a module that only the job's environment has."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession


def tell(number: int) -> tuple[str, int]:
    """Return the prefix of the executor's Python, and a value from the environment's module."""
    module: Any = importlib.import_module("only_here")
    return sys.prefix, module.VALUE + number


if __name__ == "__main__":
    importlib.import_module("only_here")  # before there is a SparkContext
    spark = SparkSession.builder.getOrCreate()
    executors = spark.sparkContext.parallelize([1, 1], 2).map(tell).collect()
    told = {"driver": sys.prefix, "executors": executors, "pyspark": pyspark.__file__}
    Path(sys.argv[1]).write_text(json.dumps(told))
    spark.stop()
