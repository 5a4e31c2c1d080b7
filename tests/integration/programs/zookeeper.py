"""ZooKeeper from pyspark's jars."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.runtime.spark.java import find_java, find_spark

LIBRARIES = ("zookeeper-", "netty-", "slf4j-", "log4j-", "metrics-core-", "snappy-java-", "commons-", "jackson-")
SMALL_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=INFO")


def command(main_class: str, *arguments: str | Path) -> list[str | Path]:
    """Return the command that runs ``main_class`` in a JVM with ZooKeeper's classes."""
    class_path = os.pathsep.join(str(jar) for jar in find_spark().jars if jar.name.startswith(LIBRARIES))
    return [find_java().executable, *SMALL_JVM, "-cp", class_path, main_class, *arguments]
