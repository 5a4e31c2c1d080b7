"""A pipeline for the tests: its code makes a setting that a job may not make."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

SparkSession.builder.config(sys.argv[1], "false").getOrCreate()
