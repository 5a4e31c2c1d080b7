"""Runs the given TPC-H queries."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def load(spark: SparkSession, folder: str) -> Any:
    """Register the tables as temporary views."""
    for path in sorted(Path(folder).glob("*.parquet")):
        spark.read.parquet(str(path)).createOrReplaceTempView(path.stem)


def query(spark: SparkSession, sql: str) -> Any:
    """The rows of a query."""
    return [[_plain(value) for value in row] for row in spark.sql(sql).collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return float(value)
    return str(value) if isinstance(value, dt.date) else value
