"""Reads the scripts, styles and images of Spark's UI from the jars of the installed Spark."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath

from sluice.runtime.spark.java import find_spark

MEDIA: Mapping[str, str] = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".html": "text/html",
}
_PLACES = (
    ("spark-core_", "org/apache/spark/ui/static/", ""),
    ("spark-sql_", "org/apache/spark/sql/execution/ui/static/", "sql/"),
)
"""Jar, directory in the jar, and the path below ``/static`` where Spark serves it."""
MAX_FILE_BYTES = 2 << 20


@cache
def ui_files() -> Mapping[str, tuple[str, bytes]]:
    """Media type and content of each file, by its path below ``/static``.

    Raises:
        SparkError: Spark is not installed.
    """
    found: dict[str, tuple[str, bytes]] = {}
    for prefix, directory, place in _PLACES:
        for path in (jar for jar in find_spark().jars if jar.name.startswith(prefix)):
            with zipfile.ZipFile(path) as jar:
                for entry in jar.infolist():
                    media = MEDIA.get(PurePosixPath(entry.filename).suffix)
                    if entry.filename.startswith(directory) and media and entry.file_size <= MAX_FILE_BYTES:
                        found[place + entry.filename.removeprefix(directory)] = (media, jar.read(entry))
    return found
