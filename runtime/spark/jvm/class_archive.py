"""Archives of loaded classes, with which Spark's JVMs start in two thirds of the time (ADR 59).

An archive (class data sharing, JEP 310) holds the classes of Spark's jars as a JVM has them after loading. It fits one
JVM and one class path, byte for byte, so its name has both in it; a JVM that finds that it does not fit after all goes
on without, and says so in its log. It is made once, by :func:`make_class_archive`, which takes about half a minute of
one core; whoever starts a JVM meanwhile does without.

An archive is code, and kept and checked as such (see :mod:`sluice.runtime.spark.code_cache`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice.core import SluiceError, StoreError, sync_directory
from sluice.runtime.spark.code_cache import cache_directory, checksum_file, is_usable, make_once
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.java import (
    Java,
    SparkDistribution,
    find_java,
    find_spark,
)
from sluice.runtime.spark.jvm.class_training import loaded_classes
from sluice.runtime.spark.jvm.options import MODULE_OPTIONS, argument_file

_LOG = logging.getLogger(__name__)

FORMAT = 2
"""Of what is trained and how: another number makes other archives."""
DUMP_TIMEOUT_SECONDS = 300
NICENESS = 19
"""The program gives way to whatever else runs."""
_WORK = "making-classes-"


def archive_name(java: Java, spark: SparkDistribution) -> str:
    """The file name of the archive for this JVM and these jars, without its suffix.

    A JVM compares its own build, and names, sizes and times of the jars; so does this.
    """
    digest = hashlib.sha256(f"{FORMAT}\0{java.build}\0{spark.version}\0".encode())
    for jar in spark.jars:
        info = jar.stat()
        digest.update(f"{jar}\0{info.st_size}\0{int(info.st_mtime)}\0".encode())
    return f"classes-{digest.hexdigest()[:20]}"


def find_class_archive(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> Path | None:
    """The archive for this JVM and these jars, checked; None when there is none that may be used."""
    directory = cache or cache_directory()
    archive = directory / f"{archive_name(java, spark)}.jsa"
    if not checksum_file(archive).exists():  # there is none, or it is just being made
        return None
    return archive if is_usable(archive, f"JVMs start without the class archive {archive}") else None


def has_class_archive(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> bool:
    """Whether there is an archive, at a glance: it is not checked."""
    return checksum_file((cache or cache_directory()) / f"{archive_name(java, spark)}.jsa").is_file()


def make_class_archive(
    *, java: Java | None = None, spark: SparkDistribution | None = None, cache: Path | None = None
) -> Path:
    """The archive for this JVM and these jars, made now if there is none that may be used.

    Of several processes that make one at once, the first does, and the others wait for it.

    Raises:
        ClassArchiveFailed: Spark did not run, or the JVM cannot make archives.
    """
    java, spark = java or find_java(), spark or find_spark()
    directory = cache or cache_directory()
    archive = directory / f"{archive_name(java, spark)}.jsa"
    try:
        make_once(
            archive,
            lambda: _make(java, spark, archive),
            lock="classes.lock",
            consequence=f"the class archive {archive} is made again",
        )
    except StoreError as error:
        raise ClassArchiveFailed(f"the class archive cannot be kept: {error.what}", error.remedy) from error
    return archive


def _make(java: Java, spark: SparkDistribution, archive: Path) -> None:
    directory = archive.parent
    for leftover in directory.glob(f"{_WORK}*"):  # of one that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=directory) as name:
        work = Path(name)
        _dump(java, spark, loaded_classes(java, spark, work), work)
        made = work / "classes.jsa"
        made.chmod(0o644)
        made.replace(archive)
    sync_directory(directory)


def _dump(java: Java, spark: SparkDistribution, classes: Path, work: Path) -> None:
    options = [
        *MODULE_OPTIONS,
        "-Xshare:dump",
        f"-XX:SharedClassListFile={classes}",
        f"-XX:SharedArchiveFile={work / 'classes.jsa'}",
        "-cp",
        spark.class_path,
    ]
    argfile = work / "dump.args"
    argfile.write_bytes(argument_file(options))
    try:
        run = subprocess.run(
            [str(java.executable), f"@{argfile}"],
            cwd=work,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DUMP_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClassArchiveFailed(f"the JVM did not archive its classes: {error}") from error
    if run.returncode != 0 or not (work / "classes.jsa").is_file():
        raise ClassArchiveFailed(f"the JVM did not archive its classes: {(run.stdout + run.stderr)[-500:].strip()}")


def main() -> int:
    """``python -m sluice.runtime.spark.jvm.class_archive``: make the archive, and print where it is."""
    os.nice(NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        sys.stdout.write(f"{make_class_archive()}\n")
    except SluiceError as error:
        _LOG.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
