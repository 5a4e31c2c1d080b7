"""The Python of a job that brings an environment of its own, in one of its archives.

Spark unpacks a job's archives beside each executor, so that a path relative to the working directory is good there (the
convention of ``PYSPARK_PYTHON=./env/bin/python``). A driver's program runs before there is a SparkContext that could
unpack anything; for it the archive is unpacked here, with the same names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from sluice.runtime.messages import Archive
from sluice.runtime.node import Exit
from sluice.runtime.spark.errors import DriverFailed, PackageRefused

SETTING = "spark.pyspark.python"
"""Spark's own setting for the same."""
TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar")
"""Archives that keep which files are programs; a zip file does not."""
MAX_PYTHON_CHARACTERS = 500

RunAside = Callable[[Sequence[str]], Awaitable[tuple[Exit, str]]]
"""Runs a command in a box of the job's; how it ended, and the end of its standard error."""

_PATH = re.compile(r"(\./)?(?P<archive>[A-Za-z0-9][A-Za-z0-9._-]*)(/(?!\.\.?(/|$))[A-Za-z0-9._+-]+)+")


def check_python(python: str, archives: Sequence[Archive]) -> str:
    """``python`` without a leading ``./``: a path below the directory of one of ``archives``.

    Raises:
        PackageRefused: it is anything else. A program of the machine is not the job's to choose.
    """
    match = _PATH.fullmatch(python) if len(python) <= MAX_PYTHON_CHARACTERS else None
    if match is None:
        raise PackageRefused(f"{python[:80]!r} is not the path of a Python in an archive", "as in env/bin/python")
    named = {archive.name: archive.blob.name for archive in archives}
    file = named.get(match["archive"])
    if file is None:
        raise PackageRefused(
            f"{python[:80]} is in no archive of the job", f"bring it: --archives FILE.tar.gz#{match['archive'][:80]}"
        )
    if not file.lower().endswith(TAR_SUFFIXES):
        raise PackageRefused(
            f"{file} cannot hold a Python: its format does not keep executable bits",
            f"pack it as one of {', '.join(TAR_SUFFIXES)}",
        )
    return python.removeprefix("./")


def archive_of(python: str) -> str:
    """The directory name of the archive that a checked ``python`` is in."""
    return python.partition("/")[0]


def pyspark_path(home: Path) -> tuple[Path, ...]:
    """What a foreign Python needs on its path: the PySpark of the Spark in ``home``, as Spark gives it to executors.

    Raises:
        DriverFailed: the installation has none.
    """
    library = home / "python" / "lib"
    found = (*library.glob("pyspark.zip"), *library.glob("py4j-*-src.zip"))
    if len(found) != 2:
        raise DriverFailed(f"{library} has no PySpark for the job's own Python", "install pyspark again")
    return found


def job_python_environment(python: str, home: Path, packages: Mapping[str, str]) -> dict[str, str]:
    """The variables of a driver's program with a ``python`` of its own, besides those that all have.

    The cluster's PySpark comes before the environment's, so that both ends of py4j are of one version.
    """
    path = [*map(str, pyspark_path(home)), *filter(None, [packages.get("PYTHONPATH", "")])]
    return {**packages, "PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": f"./{python}"}


async def unpack(file: Path, directory: Path, run: RunAside) -> None:
    """Unpack the tar archive ``file`` into the new ``directory``; tar itself refuses what would leave it.

    Raises:
        DriverFailed: it is no archive, takes too long, or ``directory`` exists.
    """
    _make(directory)
    try:
        ended, complaint = await run(
            ("tar", "--extract", "--no-same-owner", "--file", str(file), "--directory", str(directory))
        )
    except TimeoutError as error:
        raise DriverFailed(f"{file.name} took too long to unpack", "use a smaller archive") from error
    if ended.code != 0:
        told = complaint.strip() or str(ended)
        raise DriverFailed(f"{file.name} cannot be unpacked: {told}", "pack it again")


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise DriverFailed(
            f"an archive cannot be unpacked as {directory.name}: {error.strerror}", "give it another name: FILE#NAME"
        ) from error


async def install_job_python(
    python: str, archives: Sequence[tuple[Path, str]], work: Path, program: Path, run: RunAside
) -> Path:
    """Unpack the archive of ``python`` where the driver's program runs, and let its JVM find it too.

    Args:
        python: as :func:`check_python` returned it.
        archives: file and directory name of each archive.
        work: where the JVM runs, which starts Python for what Spark does on the driver.
        program: where the program runs, below ``work``.
        run: runs what touches the archive's content.

    Returns:
        The Python to run.

    Raises:
        DriverFailed: the archive has no such program.
    """
    name = archive_of(python)
    (file,) = (path for path, directory in archives if directory == name)
    await unpack(file, program / name, run)
    try:
        (work / name).symlink_to(program / name)
    except OSError as error:
        raise DriverFailed(
            f"{name} is a name that the driver needs: {error.strerror}", "give it another name: FILE#NAME"
        ) from error
    found = program / python
    ended, _ = await run(("test", "-x", str(found), "-a", "!", "-d", str(found)))
    if ended.code != 0:
        raise DriverFailed(f"{file.name} has no program {python.partition('/')[2]}", "check --python")
    return found
