"""Act as a notebook: ``client.py ACTION [user_id session_id]``.

Runs with the environment that `sluice connect` prints, and reports what happens as JSON lines.
"""

import json
import os
import sys
import time

import pandas as pd  # type: ignore[import-untyped]  # the package has no type information
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

ROWS = 40
SLEEP_SECONDS = 0.5


def tell(**what: object) -> None:
    """Write one JSON line for the test."""
    sys.stdout.write(json.dumps({"at": time.time(), **what}) + "\n")
    sys.stdout.flush()


def connected(arguments: list[str]) -> SparkSession:
    """Return a session with the user id and session id that the caller claims."""
    remote = os.environ["SPARK_REMOTE"]
    if arguments:
        remote += f";user_id={arguments[0]};session_id={arguments[1]}"
    return SparkSession.builder.remote(remote).getOrCreate()


def work(spark: SparkSession) -> None:
    """What people do: SQL, a function of their own, a mistake, a view."""

    @udf("long")
    def doubled(number: int) -> int:
        return 2 * number

    tell(sum=spark.range(100).select(doubled("id").alias("n")).groupBy().sum("n").collect()[0][0])
    try:
        spark.sql("SELECT * FROM nothing").collect()
    except Exception as error:  # noqa: BLE001  what it is, is what the test wants to know
        tell(error=type(error).__name__, condition=error.getCondition())  # type: ignore[attr-defined]
    spark.sql("SELECT 'secret of ada' AS word").createOrReplaceTempView("hers")
    tell(view=spark.sql("SELECT word FROM hers").collect()[0][0])


def peek(spark: SparkSession) -> None:
    """Try to read the view of the session with this user id and session id."""
    try:
        tell(found=[row[0] for row in spark.sql("SELECT word FROM hers").collect()])
    except Exception as error:  # noqa: BLE001
        tell(error=type(error).__name__, condition=error.getCondition())  # type: ignore[attr-defined]


def slow(spark: SparkSession) -> None:
    """A query that takes a while, row by row."""

    def pass_slowly(batches):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        for batch in batches:
            for number in batch["id"]:
                time.sleep(SLEEP_SECONDS)
                yield pd.DataFrame({"id": [number]})

    tell(begun=True)
    try:
        tell(rows=spark.range(0, ROWS, 1, 1).mapInPandas(pass_slowly, "id long").count())
    except Exception as error:  # noqa: BLE001
        tell(error=type(error).__name__, text=str(error)[:500])


if __name__ == "__main__":
    {"work": work, "peek": peek, "slow": slow}[sys.argv[1]](connected(sys.argv[2:]))
