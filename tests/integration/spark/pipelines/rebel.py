"""A test pipeline that sets a Spark setting that jobs may not set."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

SparkSession.builder.config(sys.argv[1], "false").getOrCreate()
