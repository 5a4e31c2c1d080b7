"""A pipeline for the tests: its code tries to turn the TLS of its channels off."""

from __future__ import annotations

from pyspark.sql import SparkSession

SparkSession.builder.config("spark.ssl.rpc.enabled", "false").getOrCreate()
