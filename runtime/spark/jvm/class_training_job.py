"""The job whose classes are archived: what most pipelines do, on a few rows.

Run by :mod:`sluice.runtime.spark.jvm.class_training` beside a JVM that waits for it; it needs nothing but pyspark.
"""

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812  # as all of Spark's documentation has it
)

spark = SparkSession.builder.getOrCreate()
try:
    frame = spark.createDataFrame([(number, f"name {number % 3}") for number in range(20)], ["id", "name"])
    twice = F.udf(lambda number: 2 * number, "long")
    doubled = frame.withColumn("twice", twice("id"))
    doubled.groupBy("name").agg(F.sum("twice").alias("sum")).orderBy("name").collect()
    doubled.join(frame.groupBy("name").count(), "name").write.mode("overwrite").parquet("rows.parquet")
    spark.read.parquet("rows.parquet").createOrReplaceTempView("rows")
    spark.sql("SELECT name, count(*) AS rows, max(twice) AS most FROM rows GROUP BY name HAVING rows > 1").collect()
    numbers = spark.sparkContext.parallelize(range(10), 2)
    numbers.map(lambda number: (number % 2, number)).reduceByKey(lambda one, other: one + other).collect()
finally:
    spark.stop()
