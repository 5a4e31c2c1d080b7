"""A pipeline that reports what it can see: in the driver's Python, in a UDF, and in the driver's JVM.

Arguments: paths outside of the job that it must not reach. Prints one JSON document.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TEMPORARY = "/tmp"  # noqa: S108  # the box's own


def look(paths: list[str]) -> dict[str, Any]:
    """Return what this Python process can see."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    commands = [path.joinpath("cmdline").read_bytes().split(b"\0")[0].decode() for path in processes]
    return {
        "uid": os.getuid(),
        "home": str(Path.home()),
        "processes": sorted(Path(command).name for command in commands),
        "capabilities": status["CapEff"],
        "bounding": status["CapBnd"],
        "no_new_privileges": status["NoNewPrivs"],
        "reached": [path for path in paths if Path(path).exists()],
        "environment": sorted(os.environ),
        "writable": [path for path in ("/", "/usr", "/etc", "/var", sys.prefix, "/proc/sys/kernel") if writes(path)],
        "temporary": sorted(path.name for path in Path(TEMPORARY).iterdir()),
    }


def writes(directory: str) -> bool:
    """Whether this process can create a file in ``directory``."""
    path = Path(directory, "sluice-probe")
    try:
        path.touch(exist_ok=False)
        path.unlink()
    except OSError:
        return False
    return True


def look_as_jvm(jvm: Any, paths: list[str]) -> dict[str, Any]:
    """Return what the driver's JVM can see."""
    file = jvm.java.io.File
    options = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    identity = next(each.split("=", 1)[1] for each in options if each.startswith("-javaagent:"))
    changed = []
    for name in ("key.pem", "peers", "new.pem"):
        try:
            jvm.java.io.FileOutputStream(file(identity, name)).close()
            changed.append(name)
        except Exception:  # noqa: BLE001, S110  # py4j's
            pass
    return {
        "user": jvm.System.getProperty("user.name"),
        "home": jvm.System.getProperty("user.home"),
        "processes": sum(name.isdigit() for name in file("/proc").list()),
        "reached": [path for path in paths if file(path).exists()],
        "environment": sorted(jvm.System.getenv().keySet()),
        "has_key": file(identity, "key.pem").canRead(),
        "identity": sorted(file(identity).getParentFile().list()),
        "changed": changed,
    }


def main() -> None:
    """Look from the driver, from a UDF and from the driver's JVM, and print the results."""
    from pyspark.sql import SparkSession

    paths = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    context = spark.sparkContext
    seen = {
        "driver": look(paths),
        "udf": context.parallelize([0], 1).map(lambda _: look(paths)).first(),
        "jvm": look_as_jvm(context._jvm, paths),
    }
    sys.stdout.write(json.dumps(seen) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
