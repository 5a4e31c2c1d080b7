"""Modules, packages and archives of a pipeline: the rules for their names, and the Spark settings for them."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.messages import JobSubmission
from sluice.runtime.spark.errors import DriverFailed, PackageRefused

MODULE_SUFFIXES = (".py", ".zip", ".egg", ".whl")
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
"""The archive formats that Spark unpacks."""
MAX_MEMBERS = 100_000
"""Maximum number of members of a wheel that are examined."""

_DIRECTORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NATIVE = re.compile(r"\.(so|pyd|dylib)(\.[0-9.]+)?$")


def directory_name(file_name: str) -> str:
    """The default directory name of an archive: its file name without the suffix."""
    return next((file_name[: -len(each)] for each in ARCHIVE_SUFFIXES if file_name.lower().endswith(each)), file_name)


def check_packages(submission: JobSubmission) -> None:
    """Check the modules and archives of a submission.

    Raises:
        PackageRefused: a file is not a module or archive, or two have the same name.
    """
    for ref in submission.py_files:
        if not ref.name.lower().endswith(MODULE_SUFFIXES):
            raise PackageRefused(
                f"{ref.name} is not a Python module or package", f"use one of {', '.join(MODULE_SUFFIXES)}"
            )
    for archive in submission.archives:
        name = archive.blob.name
        if not name.lower().endswith(ARCHIVE_SUFFIXES) or "#" in name:
            raise PackageRefused(f"{name} is not an archive", f"use one of {', '.join(ARCHIVE_SUFFIXES)}, without '#'")
        if not _DIRECTORY.fullmatch(archive.name):
            raise PackageRefused(
                f"{archive.name[:80]!r} is not a usable name for the directory of {name}",
                "use letters, digits, '.', '_' and '-'",
            )
    names = [archive.name for archive in submission.archives]
    taken = {ref.name for ref in (*submission.files, *submission.py_files)}
    for name in names:
        if names.count(name) > 1 or name in taken:
            raise PackageRefused(
                f"two files or archives of the job are called {name}", "give the archive another name: FILE#NAME"
            )


def importable_name(name: str) -> str:
    """The file name of a module for PySpark. A wheel is a zip file, which PySpark recognizes only by that suffix."""
    return f"{name}.zip" if name.lower().endswith(".whl") else name


def check_importable(path: Path, name: str) -> None:
    """Check that Python can import from the file ``path``, whose name in the job is ``name``.

    Raises:
        DriverFailed: it is not a zip file, or contains native code, which cannot be imported from a zip file.
    """
    if not name.lower().endswith((".whl", ".zip", ".egg")):
        return
    try:
        with zipfile.ZipFile(path) as package:
            native = next((each for each in package.namelist()[:MAX_MEMBERS] if _NATIVE.search(each)), None)
    except (zipfile.BadZipFile, OSError) as error:
        raise DriverFailed(f"{name} is not a zip file: {error}", "build it again") from error
    if native is not None:
        raise DriverFailed(
            f"{name} contains native code ({native}), which Python cannot import from a zip file",
            "install it where executors run, or unpack it with --archives",
        )


@dataclass(frozen=True, slots=True)
class Packages:
    """The modules on Python's path, and the archives to unpack (file, directory name)."""

    modules: Sequence[Path] = ()
    archives: Sequence[tuple[Path, str]] = ()

    def conf(self, files: Sequence[Path]) -> dict[str, str]:
        """The Spark settings that distribute these and ``files`` to the driver and executors."""
        conf = {}
        if files or self.modules:
            conf["spark.files"] = ",".join(map(str, (*files, *self.modules)))
        if self.modules:
            conf["spark.submit.pyFiles"] = ",".join(map(str, self.modules))
        if self.archives:
            conf["spark.archives"] = ",".join(f"{path}#{name}" for path, name in self.archives)
        return conf

    def environment(self) -> Mapping[str, str]:
        """The variables for imports before the SparkContext exists. ``.py`` files are next to the pipeline."""
        packed = [str(path) for path in self.modules if path.suffix.lower() != ".py"]
        return {"PYTHONPATH": ":".join(packed)} if packed else {}


NO_PACKAGES = Packages()
"""The packages of a pipeline that has none."""
