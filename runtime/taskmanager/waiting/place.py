"""The directories of a warm process: empty at first, later used by the job's process."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from sluice.core import make_private_directory, remove_untrusted
from sluice.runtime.node import kill_processes_below
from sluice.runtime.spark.jvm import make_temp_dir, remove_temp_dir

OTHERS_MAY_PASS = 0o711
DIRECTORY = "waiting"
"""Name below a TaskManager's directory."""


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """The directories of one warm process, from its start to its end.


    Attributes:
        id: stands in for a job id: it selects the uid of the process, if jobs have uids of their own.
        directory: contains all directories but ``temp`` and ``workload``. The process sees only those named here.
        temp: a short path.
        workload: a short path; later contains the socket of the Workload API.
    """

    id: str
    directory: Path
    temp: Path
    workload: Path

    @classmethod
    def make(cls, parent: Path) -> WaitingPlace:
        """Create directories below ``parent``; raises ``StoreError``."""
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
        """The directory for evidence of its connections and of the authorities it trusts."""
        return self.directory / "reports"

    @property
    def identity(self) -> Path:
        """The directory that later contains its identity."""
        return self.directory / "identity"

    @property
    def checkpoints(self) -> Path:
        """The mount point for checkpoints: empty at first, later with those of the job."""
        return self.directory / "checkpoints"

    def hand_over(self, names: tuple[str, ...], directory: Path) -> None:
        """Move logs to the directory of the job's logs. Processes that have them open keep writing to them."""
        for name in names:
            (self.directory / name).rename(directory / name)

    def remove(self) -> None:
        """Kill leftover child processes and remove the directories, after its end; raises ``OrphansRemain``."""
        kill_processes_below(self.directory)
        for path in (self.temp, self.workload):
            remove_temp_dir(path)
        remove_untrusted(self.directory.parent, self.directory.name)


def remove_left_places(parent: Path) -> None:
    """Kill and remove warm processes that an earlier TaskManager left below ``parent``; raises ``OrphansRemain``."""
    kill_processes_below(parent)
    for path in parent.iterdir():
        remove_untrusted(parent, path.name)
