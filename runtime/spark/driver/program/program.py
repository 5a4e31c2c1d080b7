"""Fetches the files of a pipeline: first to a directory without access for the job, then moves them to the job's.

So they can be fetched while the JVM starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sluice.core import make_private_directory
from sluice.runtime.messages import BlobRef, DriverAssignment
from sluice.runtime.spark.driver.program.fetching import FetchBlob
from sluice.runtime.spark.driver.program.pipeline import Pipeline
from sluice.runtime.spark.errors import DriverFailed
from sluice.runtime.spark.jvm import Packages, check_importable, importable_name


class Program:
    """The program of an attempt, and its files.

    Args:
        assignment: names the files.
        place: their final directory, which must not exist yet, below a directory that the job can write to.
        aside: the directory to fetch them to, on the same file system, without access for the job.

    Attributes:
        pipeline: the pipeline with the final paths of its files.

    Raises:
        DriverFailed: a file name is invalid or not unique.
    """

    def __init__(self, assignment: DriverAssignment, place: Path, aside: Path) -> None:
        self._place = place
        self._aside = aside
        self._fetched: dict[str, BlobRef] = {}
        modules = tuple(self._at(ref, importable_name) for ref in assignment.py_files)
        self._modules = frozenset(path.name for path in modules)
        archives = tuple((self._at(each.blob), each.name) for each in assignment.archives)
        self.pipeline = Pipeline(
            self._at(assignment.pipeline),
            assignment.args,
            tuple(self._at(ref) for ref in assignment.files),
            Packages(modules, archives),
            assignment.python,
        )

    def _at(self, ref: BlobRef, called: Callable[[str], str] = str) -> Path:
        """The final path of a file."""
        name = called(safe_name(ref.name))
        if name in self._fetched:
            raise DriverFailed(f"two files of the job are called {name}", "rename one of them")
        self._fetched[name] = ref
        return self._place / name

    async def fetch(self, assignment: DriverAssignment, fetch: FetchBlob, own: Callable[[Path], None]) -> None:
        """Fetch all files, give them to the job, and move them to their place.

        Args:
            assignment: says where to fetch from.
            fetch: fetches one file.
            own: gives a path to the job's uid.

        Raises:
            DriverFailed: a module cannot be imported.
            BlobError: a file cannot be fetched.
        """
        directory = make_private_directory(self._aside)
        for name, ref in self._fetched.items():
            await fetch(assignment, ref, directory / name)
            if name in self._modules:
                await asyncio.to_thread(check_importable, directory / name, ref.name)
        await asyncio.to_thread(self._hand_over, own)

    def _hand_over(self, own: Callable[[Path], None]) -> None:
        own(self._aside)
        self._aside.rename(self._place)  # fails if the target has content, which only the job could have put there


def safe_name(name: str) -> str:
    """Return ``name`` if it is a plain file name that Spark's comma-separated lists can contain.

    Raises:
        DriverFailed: it is not.
    """
    if (
        not name
        or name != Path(name).name
        or name.startswith(".")
        or "," in name
        or not name.isprintable()
        or len(name) > 200
    ):
        raise DriverFailed(f"{name[:100]!r} is not a usable file name", "use letters, digits, '.', '_' and '-'")
    return name
