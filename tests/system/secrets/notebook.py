"""A Spark Connect notebook: ``notebook.py FILE...``.

Prints a digest of each file as driver and executors see it.
"""

import hashlib
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import lit, udf


def main() -> None:
    """Run one query."""
    spark = SparkSession.builder.getOrCreate()  # first: it decides which plans functions build

    @udf("string")
    def seen(path: str) -> str:
        file = Path(path)
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""

    row = spark.range(1).select(*(seen(lit(path)).alias(f"c{n}") for n, path in enumerate(sys.argv[1:]))).collect()[0]
    print("SEEN", json.dumps(list(row)), flush=True)  # noqa: T201  the test reads it
    spark.stop()


if __name__ == "__main__":
    main()
