"""The pipeline: runs every attempt from every place, and prints each result as one marked line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from .attempt import ATTEMPTS, Attempt, Place
from .bounded import tried
from .rows import load
from .world import World, read

MARK = "SLUICE-INSIDER"
"""A result is a line of this word, the nonce of the run, and JSON."""
UDF_BATCH = 8
"""Attempts per task: if one ends its worker, only these are lost, and they are tried again one by one."""


def chosen(place: Place, *, last: bool) -> list[Attempt]:
    """The attempts from ``place``; ``last``: those that may end the job."""
    return [each for each in ATTEMPTS.values() if place in each.places and each.last is last]


def row(attempt: Attempt, place: Place, world: World) -> str:
    """One result in the form of its line."""
    started = time.monotonic()
    result = tried(attempt, replace(world, place=place))
    document = {
        "id": attempt.id,
        "place": place,
        "outcome": result.outcome,
        "done": result.done,
        "seen": result.seen,
        "seconds": round(time.monotonic() - started, 3),
    }
    return f"{MARK} {world.nonce} {json.dumps(document)}"


def in_worker(ids: Iterable[str], world: World) -> Iterator[str]:
    """What a task does: attempts in its Python worker."""
    load()
    for id_ in ids:
        yield row(ATTEMPTS[id_], Place.UDF, world)


def _told_by_udfs(spark: Any, attempts: list[Attempt], world: World) -> Iterator[str]:  # noqa: ANN401
    """A batch whose worker dies is tried again in halves, down to the one attempt that ends it."""
    if not attempts:
        return
    ids = [each.id for each in attempts]
    try:
        yield from spark.sparkContext.parallelize([ids], 1).flatMap(lambda each: in_worker(each, world)).collect()
    except Exception as error:  # noqa: BLE001  any error of Spark about a dead worker
        if len(attempts) > 1:
            middle = len(attempts) // 2
            yield from _told_by_udfs(spark, attempts[:middle], world)
            yield from _told_by_udfs(spark, attempts[middle:], world)
        else:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            document = {
                "id": ids[0],
                "place": Place.UDF,
                "outcome": "refused" if attempts[0].last else "untried",
                "done": f"tried to {attempts[0].what}",
                "seen": f"the task failed: {reason[0]}"[:500],
                "seconds": 0.0,
            }
            yield f"{MARK} {world.nonce} {json.dumps(document)}"


def run() -> None:
    """Run all attempts in order, and print results at once."""
    from pyspark.sql import SparkSession

    load()
    world = replace(read(), own=os.environ.get("SLUICE_JOB_ID", ""))
    for each in chosen(Place.DRIVER, last=False):
        tell([row(each, Place.DRIVER, world)])
    spark = SparkSession.builder.getOrCreate()
    inside = replace(world, spark=spark)
    udf = chosen(Place.UDF, last=False)
    for start in range(0, len(udf), UDF_BATCH):
        tell(_told_by_udfs(spark, udf[start : start + UDF_BATCH], world))
    for place in (Place.DRIVER_JVM, Place.EXECUTOR_JVM):
        for each in chosen(place, last=False):
            tell([row(each, place, inside)])
    for each in chosen(Place.DRIVER_JVM, last=True):
        tell([row(each, Place.DRIVER_JVM, inside)])
    for each in chosen(Place.UDF, last=True):
        tell(_told_by_udfs(spark, [each], world))
    for each in chosen(Place.DRIVER, last=True):
        tell([row(each, Place.DRIVER, world)])
    tell([f"{MARK} {world.nonce} end"])
    spark.stop()


def tell(lines: Iterable[str]) -> None:
    """Print to standard output at once."""
    for line in lines:
        print(line, flush=True)  # noqa: T201  a pipeline prints


if __name__ == "__main__":
    run()
