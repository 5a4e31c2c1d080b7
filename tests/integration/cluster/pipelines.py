"""The source text of small pipelines that the tests submit."""

from __future__ import annotations

SUM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("sum").getOrCreate()
print("groups", spark.range(0, 1000, 1, 8).selectExpr("id % 7 AS k").groupBy("k").count().count())
spark.stop()
"""

FAILING = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("failing").getOrCreate()


def pick(certificates):
    return certificates["does-not-exist"]


pick({"a": spark.range(10).count()})
"""

FAILING_UDF = """
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.appName("failing udf").getOrCreate()


@udf("int")
def explode(value):
    raise ValueError(f"cannot parse record {value}")


spark.range(10).select(explode("id")).collect()
"""

SLOW = """
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.appName("slow").getOrCreate()
seconds = float(sys.argv[1])


@udf("long")
def slowly(value):
    time.sleep(seconds)
    return value


frame = spark.range(0, 40, 1, 40).select(slowly("id").alias("id"))
total = frame.repartition(4, "id").groupBy().sum("id").first()[0]
print("total", total)
spark.stop()
"""

ROUNDS = """
import os
import sys
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("rounds").getOrCreate()
until = sys.argv[1]
rounds = 0
while not os.path.exists(until):
    total = spark.range(0, 20000, 1, 4).repartition(6, "id").groupBy().sum("id").first()[0]
    assert total == 199990000, total
    rounds += 1
    time.sleep(1)
print("rounds", rounds)
spark.stop()
"""
"""Shuffles every second until the file in its argument exists."""
