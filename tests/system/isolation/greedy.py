"""A pipeline that uses more than it may: ``greedy.py PLACE WHAT``, in the driver or in a UDF. Bounded in each."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

MIB = 1 << 20


def memory() -> None:
    """Up to 1.2 GiB."""
    taken = []
    for _ in range(120):
        taken.append(bytearray(10 * MIB))
        time.sleep(0.02)


def forks() -> None:
    """Up to 600 processes."""
    for _ in range(600):
        try:
            os.posix_spawn("/bin/sleep", ["sleep", "120"], {})
        except OSError:
            time.sleep(0.05)
        time.sleep(0.002)


def disk() -> None:
    """Up to 300 MiB in the working directory."""
    _fill("filling", 300)


def tmp() -> None:
    """Up to 300 MiB in /tmp."""
    _fill("/tmp/filling", 300)  # noqa: S108  # the job's own


def shm() -> None:
    """Up to 300 MiB in /dev/shm."""
    _fill("/dev/shm/filling", 300)  # noqa: S108  # the job's own


def prints() -> None:
    """Up to 200 MiB."""
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
    """Use too much, then wait to be ended."""
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
