"""Where jobs run, seen from the audit: on this machine, or in a container whose files are below ``/proc/PID/root``."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from sluice.audit.containers import Container
from sluice.core import Home

_PYTHON = re.compile(rb"/python[0-9.]*$")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a job.

    Attributes:
        home: of the cluster, as the audit sees it.
        user: the home directory of the user who runs the cluster, as the job would name it.
        prefix: of the Python that runs the cluster, as the job would name it.
        base: of the Python installation, likewise.
        process: a process in the same namespaces.
        root: the audit's path of the job's ``/``, without a sandbox.
    """

    home: Home
    user: Path
    prefix: Path
    base: Path
    process: str = "self"
    root: Path = Path("/")

    @classmethod
    def of_home(cls, home: Home) -> Surroundings:
        """On this machine, beside ``home``."""
        return cls(home, Path.home(), Path(sys.prefix), Path(sys.base_prefix))

    @classmethod
    def of_container(cls, container: Container) -> Surroundings:
        """In a container, beside its home."""
        arguments = Path(f"/proc/{container.pid}/cmdline").read_bytes().split(b"\0")
        program = next((Path(os.fsdecode(each)) for each in arguments if _PYTHON.search(each)), None)
        prefix = Path("/usr/local") if program is None else program.parent.parent
        return cls(container.files, Path("/root"), prefix, Path("/usr"), str(container.pid), container.root)

    def inside(self, path: Path) -> str:
        """A job's path for the audit's ``path``."""
        return str(path) if self.root == Path("/") else f"/{path.relative_to(self.root)}"

    def seen(self, path: Path | str) -> Path:
        """The audit's path for a job's ``path``."""
        return self.root / str(path).lstrip("/")
