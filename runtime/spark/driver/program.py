"""The files of a pipeline: fetched where the job has no way to, while its JVM starts, then moved to where it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sluice.core import make_private_directory
from sluice.runtime.messages import BlobRef, DriverAssignment
from sluice.runtime.spark.driver.fetching import FetchBlob
from sluice.runtime.spark.driver.pipeline import Pipeline
from sluice.runtime.spark.errors import DriverFailed
from sluice.runtime.spark.jvm import Packages, check_importable, importable_name


class Program:
    """What an attempt runs.

    Args:
        assignment: that names the files.
        place: the directory that they will be in, below what the job can write.
        aside: where they are fetched, on the same file system, where the job has no way to.

    Attributes:
        pipeline: with the paths that its files will have.

    Raises:
        DriverFailed: a name cannot be used, or there are two of it.
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
        """Where a file will be."""
        name = called(safe_name(ref.name))
        if name in self._fetched:
            raise DriverFailed(f"two files of the job are called {name}", "rename one of them")
        self._fetched[name] = ref
        return self._place / name

    async def fetch(self, assignment: DriverAssignment, fetch: FetchBlob, own: Callable[[Path], None]) -> None:
        """Fetch all files, give them to the job, and move them to their place.

        Args:
            assignment: that says from where.
            fetch: fetches one.
            own: makes what is at a path the job's.

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
        self._aside.rename(self._place)  # fails if there is anything: only the job could have put it there


def safe_name(name: str) -> str:
    """``name`` when it is a plain file name that Spark's lists can carry; :class:`DriverFailed` otherwise."""
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
