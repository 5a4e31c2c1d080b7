"""A test pipeline that succeeds, but whose JVM has a shutdown hook that waits forever."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
assert spark.range(10).count() == 10
jvm = spark.sparkContext._jvm
assert jvm is not None
java = jvm.java
runnable = java.lang.Class.forName("java.lang.Runnable")
hook = java.beans.EventHandler.create(runnable, java.util.concurrent.CountDownLatch(1), "await")
java.lang.Runtime.getRuntime().addShutdownHook(java.lang.Thread(hook))
sys.stdout.write("done\n")
spark.stop()
