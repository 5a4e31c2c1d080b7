"""A driver program that runs functions on request: a line of JSON in, a line of JSON out.

``{"run": "kinds.group", …arguments}`` calls a function of a module beside this one. The SparkSession is the
first argument.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    """Answer requests until the input ends."""
    sys.path.insert(0, str(Path(__file__).parent))
    spark = SparkSession.builder.getOrCreate()
    for line in sys.stdin:
        request = json.loads(line)
        module, _, name = request.pop("run").partition(".")
        try:
            result = {"result": getattr(importlib.import_module(module), name)(spark, **request)}
        except Exception:  # noqa: BLE001  # whatever it is, the test has to see it
            result = {"error": traceback.format_exc()[:6000]}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
