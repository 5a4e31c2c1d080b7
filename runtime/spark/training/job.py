"""The jobs whose classes are archived: what most pipelines do, on a few rows.

``job.py DIRECTORY``: in a cluster. ``job.py DIRECTORY CLASSES``: driver and executor in one JVM, which then loads the
classes whose names are in the file CLASSES. It runs beside a JVM that waits for it, and needs nothing but pyspark.
"""

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812  # as all of Spark's documentation has it
)

LOCAL = {"spark.master": "local[2]", "spark.ui.enabled": "false"}


def work(spark: SparkSession, directory: Path) -> None:
    """A bit of everything: rows from Python and back, functions of Python, shuffles, joins, files, SQL, RDDs."""
    frame = spark.createDataFrame([(number, f"name {number % 3}") for number in range(20)], ["id", "name"])
    twice = F.udf(lambda number: 2 * number, "long")
    doubled = frame.withColumn("twice", twice("id"))
    doubled.groupBy("name").agg(F.sum("twice").alias("sum")).orderBy("name").collect()
    spark.range(1000).selectExpr("sum(id)").collect()
    rows = str(directory / "rows.parquet")
    doubled.join(frame.groupBy("name").count(), "name").write.mode("overwrite").parquet(rows)
    spark.read.parquet(rows).createOrReplaceTempView("rows")
    spark.sql("SELECT name, count(*) AS rows, max(twice) AS most FROM rows GROUP BY name HAVING rows > 1").collect()
    numbers = spark.sparkContext.parallelize(range(10), 2)
    numbers.map(lambda number: (number % 2, number)).reduceByKey(lambda one, other: one + other).collect()


def load(spark: SparkSession, names: list[str]) -> None:
    """Have the JVM load these classes, as far as it finds them; nothing of them runs."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # pyspark has no other way to it
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in names:
        try:
            jvm.java.lang.Class.forName(name, False, loader)
        except Exception:  # noqa: BLE001, S112  # of another loader, or made by the JVM itself
            continue


def main() -> None:
    """Run what the arguments ask for."""
    directory = Path(sys.argv[1])
    builder = SparkSession.builder
    for key, value in LOCAL.items() if sys.argv[2:] else ():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        work(spark, directory)
        if sys.argv[2:]:
            load(spark, Path(sys.argv[2]).read_text().split())
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
