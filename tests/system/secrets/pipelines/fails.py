"""Fails with a secret value in its errors, in a task and in the driver."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession


def fail(_: int) -> int:
    """Raise an error that contains the whole connection string, as libraries do."""
    raise ValueError(f"cannot connect with {Path('/run/secrets/url').read_text(encoding='utf-8')}")


def main() -> None:
    """Fail on an executor, then in the driver."""
    spark = SparkSession.builder.getOrCreate()
    try:
        spark.sparkContext.parallelize(range(2), 2).map(fail).collect()
    except Exception as error:
        raise RuntimeError(f"no connection: {Path('/run/secrets/url').read_text(encoding='utf-8')}") from error


if __name__ == "__main__":
    main()
