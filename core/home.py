"""Where a local cluster keeps its state: the layout below ``--home`` / ``SLUICE_HOME``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sluice.core.files import make_private_directory

MAX_SOCKET_DIRECTORY_BYTES = 70
"""Longest directory for unix sockets; ``sun_path`` holds 108 bytes including the file name (unix(7))."""


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home directory; nothing is created until asked for."""

    root: Path

    @classmethod
    def at(cls, path: Path) -> Home:
        """The home at ``path``, made absolute so that it survives a change of directory."""
        return cls(path.expanduser().absolute())

    @property
    def pki(self) -> Path:
        """Authorities and identities."""
        return self.root / "pki"

    def identity(self, role: str, name: str) -> Path:
        """The identity directory of process ``name`` in ``role``."""
        return self.pki / "identities" / role / name

    @property
    def gateway(self) -> Path:
        """State of the auth service: tokens and audit log."""
        return self.root / "gateway"

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.root / "log"

    @property
    def blobs(self) -> Path:
        """Content-addressed artifacts."""
        return self.root / "blobs"

    def work(self, name: str) -> Path:
        """Working directory of TaskManager ``name``."""
        return self.root / "work" / name

    @property
    def shuffle(self) -> Path:
        """Data of ShuffleWorkers, a folder each, where no other directories are set."""
        return self.root / "shuffle"

    @property
    def run(self) -> Path:
        """Process records and published addresses; gone when the cluster is down."""
        return self.root / "run"

    @property
    def sockets(self) -> Path:
        """Directory (0700) for unix sockets; in the temporary directory when the home's path is too long."""
        inside = self.run / "sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_DIRECTORY_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"sluice-{os.geteuid()}-{digest}"

    def envoy(self, name: str) -> Home:
        """Sockets, logs and audit chain of a second Envoy ``name`` on this machine."""
        return Home(self.root / "envoys" / name)

    @property
    def metric_sockets(self) -> Path:
        """Directory (0700) for the sockets that serve metrics, one for each process."""
        return self.sockets / "m"

    def remove_socket_directory(self) -> None:
        """Remove the directory for sockets when it is outside of the home and empty.

        For the end of a cluster: no process of the home may start at the same time.
        """
        if not self.sockets.is_relative_to(self.root):
            for path in (self.metric_sockets, self.sockets):
                with contextlib.suppress(OSError):  # not empty, or not there
                    path.rmdir()

    def create(self) -> Home:
        """Create the directories, each readable by the owner alone; returns self."""
        for path in (
            self.root,
            self.pki,
            self.gateway,
            self.logs,
            self.blobs,
            self.run,
            self.sockets,
        ):
            make_private_directory(path)
        return self
