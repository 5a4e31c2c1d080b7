"""The Python of a job that has its own Python environment in one of its archives.

Spark unpacks a job's archives in the working directory of each executor, so a relative path works there (the convention
of ``PYSPARK_PYTHON=./env/bin/python``). The driver's program starts before a SparkContext could unpack anything, so
this module unpacks the archive for it, under the same name.
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
"""Spark's setting for the Python of a job."""
TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar")
"""Formats that preserve executable bits, unlike zip files."""
MAX_PYTHON_CHARACTERS = 500

RunInBox = Callable[[Sequence[str]], Awaitable[tuple[Exit, str]]]
"""Runs a command in a box of the job; returns its exit and the end of its standard error."""

_PATH = re.compile(r"(\./)?(?P<archive>[A-Za-z0-9][A-Za-z0-9._-]*)(/(?!\.\.?(/|$))[A-Za-z0-9._+-]+)+")


def check_python(python: str, archives: Sequence[Archive]) -> str:
    """Check that ``python`` is a path in the directory of one of ``archives``; return it without a leading ``./``.

    Raises:
        PackageRefused: it is anything else. A job may not choose a program of the machine.
    """
    match = _PATH.fullmatch(python) if len(python) <= MAX_PYTHON_CHARACTERS else None
    if match is None:
        raise PackageRefused(f"{python[:80]!r} is not the path of a Python in an archive", "such as env/bin/python")
    named = {archive.name: archive.blob.name for archive in archives}
    file = named.get(match["archive"])
    if file is None:
        raise PackageRefused(
            f"{python[:80]} is in no archive of the job", f"add it: --archives FILE.tar.gz#{match['archive'][:80]}"
        )
    if not file.lower().endswith(TAR_SUFFIXES):
        raise PackageRefused(
            f"{file} cannot contain a Python: its format does not preserve executable bits",
            f"pack it as one of {', '.join(TAR_SUFFIXES)}",
        )
    return python.removeprefix("./")


def archive_of(python: str) -> str:
    """The directory name of the archive that contains ``python``, which must be checked."""
    return python.partition("/")[0]


def pyspark_path(home: Path) -> tuple[Path, ...]:
    """The path entries that a job's own Python needs: PySpark from the Spark in ``home``, as on executors.

    Raises:
        DriverFailed: the installation lacks these files.
    """
    library = home / "python" / "lib"
    found = (*library.glob("pyspark.zip"), *library.glob("py4j-*-src.zip"))
    if len(found) != 2:
        raise DriverFailed(f"{library} has no PySpark for the job's own Python", "install pyspark again")
    return found


def job_python_environment(python: str, home: Path, packages: Mapping[str, str]) -> dict[str, str]:
    """The additional environment variables of a driver's program that has its own ``python``.

    The cluster's PySpark comes before the environment's, so that both ends of py4j have the same version.
    """
    path = [*map(str, pyspark_path(home)), *filter(None, [packages.get("PYTHONPATH", "")])]
    return {**packages, "PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": f"./{python}"}


async def unpack(file: Path, directory: Path, run: RunInBox) -> None:
    """Unpack the tar archive ``file`` into the new ``directory``. tar itself refuses paths outside of it.

    Raises:
        DriverFailed: it is not an archive, takes too long to unpack, or ``directory`` exists.
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
        raise DriverFailed(f"cannot unpack {file.name}: {told}", "pack it again")


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise DriverFailed(
            f"cannot unpack an archive as {directory.name}: {error.strerror}", "give it another name: FILE#NAME"
        ) from error


async def install_job_python(
    python: str, archives: Sequence[tuple[Path, str]], work: Path, program: Path, run: RunInBox
) -> Path:
    """Unpack the archive of ``python`` for the driver's program, and link it for the driver's JVM.

    Args:
        python: the result of :func:`check_python`.
        archives: file and directory name of each archive.
        work: working directory of the JVM, which starts Python workers on the driver.
        program: working directory of the program, below ``work``.
        run: runs the commands that access the archive's content.

    Returns:
        The path of the Python to run.

    Raises:
        DriverFailed: the archive cannot be unpacked, or does not contain the program.
    """
    name = archive_of(python)
    (file,) = (path for path, directory in archives if directory == name)
    await unpack(file, program / name, run)
    try:
        (work / name).symlink_to(program / name)
    except OSError as error:
        raise DriverFailed(
            f"the driver itself needs the name {name}: {error.strerror}", "give it another name: FILE#NAME"
        ) from error
    found = program / python
    ended, _ = await run(("test", "-x", str(found), "-a", "!", "-d", str(found)))
    if ended.code != 0:
        raise DriverFailed(f"{file.name} has no program {python.partition('/')[2]}", "check --python")
    return found
