"""Fails with a value in its errors, of a task and of the driver."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession


def fail(_: int) -> int:
    """An error as libraries make them: with the whole connection string."""
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
