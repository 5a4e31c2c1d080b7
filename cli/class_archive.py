"""The archive of Spark's classes, made beside a running cluster so that nobody waits for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

from pki.errors import SluiceError
from pki.home import Home
from runtime.process import ChildProcess
from runtime.spark.class_archive import has_class_archive
from runtime.spark.java import find_java, find_spark

LOG = "class-archive.log"
PATIENCE_SECONDS = 60.0
"""A cluster that ends sooner (a demo, a test) would only begin the work, and whoever comes first has the machine."""


async def archive_classes(environment: Mapping[str, str], home: Home, report: Callable[[str], None]) -> None:
    """Have the archive made by a process of its own if there is none; what goes wrong costs nothing but speed."""
    try:
        if await asyncio.to_thread(lambda: has_class_archive(find_java(), find_spark())):
            return
    except SluiceError as error:
        report(f"no archive of Spark's classes is made: {error}")
        return
    await asyncio.sleep(PATIENCE_SECONDS)
    path = home.logs / LOG
    with path.open("ab") as log:
        child = await ChildProcess.start(
            [sys.executable, "-P", "-m", "runtime.spark.class_archive"],
            env=environment,
            cwd=home.root,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        ended = await child.wait()
        if ended.code == 0:
            report("archived Spark's classes: JVMs start faster from now on")
        else:
            report(f"no archive of Spark's classes was made ({ended}), see {path}")
    finally:
        await child.stop(0)
