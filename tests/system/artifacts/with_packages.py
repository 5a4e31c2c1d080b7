"""A pipeline that needs all that came with it: a module, a package in a wheel, an archive, a file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import SparkSession


def computed(number: int) -> int:
    """Compute a number; needs the module, the package and the unpacked archive wherever it runs."""
    doubling: Any = importlib.import_module("packed.doubling")
    single: Any = importlib.import_module("single")
    offset = int((Path(SparkFiles.get("settings")) / "inside" / "offset.txt").read_text())
    return int(doubling.double(number)) + int(single.ONE) + offset


def main(target: Path) -> None:
    """Write what the executors compute from the numbers in the file, and what the driver computes."""
    importlib.import_module("packed.doubling")  # before there is a SparkContext
    importlib.import_module("single")
    spark = SparkSession.builder.getOrCreate()
    numbers = [int(line) for line in Path("numbers.csv").read_text().split()]
    computed_there = spark.sparkContext.parallelize(numbers, 2).map(computed).collect()
    target.write_text(" ".join(map(str, [*computed_there, computed(4)])))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
