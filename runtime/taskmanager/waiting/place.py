"""The directories of a process that waits for a job: empty at first, later used by the job's process."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from sluice.core import make_private_directory, remove_untrusted
from sluice.runtime.node import kill_below
from sluice.runtime.spark.jvm import make_temp_dir, remove_temp_dir

OTHERS_MAY_PASS = 0o711
DIRECTORY = "waiting"
"""Below a TaskManager's directory."""


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """Directories that are one process's alone, from when it begins to wait until it ends.

    Attributes:
        id: in the place of a job's id: whose uid the process has, where each job has one.
        directory: what all but ``temp`` and ``workload`` are below; the process sees only what is named here.
        temp: short.
        workload: short; what the Workload API is in later.
    """

    id: str
    directory: Path
    temp: Path
    workload: Path

    @classmethod
    def make(cls, parent: Path) -> WaitingPlace:
        """New directories below ``parent``; raises ``StoreError``."""
        box_id = secrets.token_hex(16)
        place = cls(box_id, make_private_directory(parent / box_id), make_temp_dir(), make_temp_dir())
        for path in (place.work, place.reports, place.identity, place.checkpoints):
            make_private_directory(path)
        place.checkpoints.chmod(OTHERS_MAY_PASS)
        return place

    @property
    def work(self) -> Path:
        """Its working directory."""
        return self.directory / "work"

    @property
    def reports(self) -> Path:
        """The evidence of its connections and of whom it trusts."""
        return self.directory / "reports"

    @property
    def identity(self) -> Path:
        """Where its identity will be."""
        return self.directory / "identity"

    @property
    def checkpoints(self) -> Path:
        """The mount point for checkpoints: empty at first, later with those of its job."""
        return self.directory / "checkpoints"

    def hand_over(self, names: tuple[str, ...], directory: Path) -> None:
        """Move logs to where those of the job are; who has them open writes on."""
        for name in names:
            (self.directory / name).rename(directory / name)

    def remove(self) -> None:
        """Clean up after the end of the process, and end whatever it has started; raises ``OrphansRemain``."""
        kill_below(self.directory)
        for path in (self.temp, self.workload):
            remove_temp_dir(path)
        remove_untrusted(self.directory.parent, self.directory.name)


def remove_left_places(parent: Path) -> None:
    """End and remove what an earlier TaskManager left waiting below ``parent``; raises ``OrphansRemain``."""
    kill_below(parent)
    for path in parent.iterdir():
        remove_untrusted(parent, path.name)
