"""A Spark application that ``SPARK_CONF_DIR`` alone configures; its argument is the master.

Prints one JSON object with its result and its addresses, and runs until its standard input ends.
"""

from __future__ import annotations

import json
import sys

from pyspark import SparkConf, SparkContext

context = SparkContext(conf=SparkConf().setMaster(sys.argv[1]).setAppName("exported"))
numbers = context.parallelize(range(1000), 2).map(lambda number: (number % 3, number))
report = {
    "sums": dict(numbers.reduceByKey(lambda one, other: one + other).collect()),
    "rpc": context.getConf().get("spark.driver.port"),
    "pages": context.uiWebUrl,
    # host:port of each block manager, of driver and executor
    "blocks": str(context._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ")).split(),
}
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
sys.stdin.read()
