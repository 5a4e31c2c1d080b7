"""A pipeline that exceeds its limits: ``greedy.py PLACE WHAT``.

PLACE is the driver or a UDF. Each kind of excess is itself bounded.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

MIB = 1 << 20


def memory() -> None:
    """Allocate up to 1.2 GiB of memory."""
    taken = []
    for _ in range(120):
        taken.append(bytearray(10 * MIB))
        time.sleep(0.02)


def forks() -> None:
    """Start up to 600 processes."""
    for _ in range(600):
        try:
            os.posix_spawn("/bin/sleep", ["sleep", "120"], {})
        except OSError:
            time.sleep(0.05)
        time.sleep(0.002)


def disk() -> None:
    """Write up to 300 MiB to the working directory."""
    _fill("filling", 300)


def tmp() -> None:
    """Write up to 300 MiB to /tmp."""
    _fill("/tmp/filling", 300)  # noqa: S108  # the job's own


def shm() -> None:
    """Write up to 300 MiB to /dev/shm."""
    _fill("/dev/shm/filling", 300)  # noqa: S108  # the job's own


def prints() -> None:
    """Write up to 200 MiB to standard output and as much to standard error."""
    for _ in range(200):
        sys.stdout.write(("x" * 1023 + "\n") * 1024)
        sys.stdout.flush()
        os.write(2, b"y" * MIB)  # the output of Python workers goes to standard error
        time.sleep(0.02)


def _fill(path: str, mebibytes: int) -> None:
    with Path(path).open("wb") as file:
        for _ in range(mebibytes):
            file.write(os.urandom(MIB))
            file.flush()
            time.sleep(0.01)


GREEDS = {each.__name__: each for each in (memory, forks, disk, tmp, shm, prints)}


def main() -> None:
    """Exceed the limit, then wait to be ended."""
    place, what = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    use = GREEDS[what]
    if place == "driver":
        use()
        time.sleep(120)
    else:

        def use_and_wait(_: int) -> None:
            use()
            time.sleep(120)

        spark.sparkContext.parallelize([0], 1).foreach(use_and_wait)
    spark.stop()


if __name__ == "__main__":
    main()
