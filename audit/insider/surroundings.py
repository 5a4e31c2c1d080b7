"""Where jobs run, as the audit sees it: on this machine, or in a container whose files are below ``/proc/PID/root``."""

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
    """What a job runs beside.

    Attributes:
        home: of the cluster, as the audit sees it.
        user: the home directory of the user who runs the cluster, as the job would name it.
        prefix: of the Python that runs the cluster, as the job would name it.
        base: of the Python installation, likewise.
        process: one whose namespaces they are.
        root: where the job's ``/`` is for the audit, were it in no sandbox.
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
        """How a job would name what the audit sees at ``path``."""
        return str(path) if self.root == Path("/") else f"/{path.relative_to(self.root)}"

    def seen(self, path: Path | str) -> Path:
        """Where the audit sees what a job would name ``path``."""
        return self.root / str(path).lstrip("/")
