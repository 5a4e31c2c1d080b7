"""A pipeline for the tests: a Spark job that would run for an hour."""

from __future__ import annotations

import time

from pyspark import SparkContext


def sleep(number: int) -> int:
    time.sleep(3600)
    return number


SparkContext.getOrCreate().parallelize([1], 1).map(sleep).collect()
