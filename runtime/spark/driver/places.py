"""Where the files of one driver are, and which of its processes may write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.core import make_private_directory
from sluice.runtime.spark.jvm import JvmPlace


@dataclass(frozen=True, slots=True)
class DriverPlaces:
    """Directories of one attempt; the job has no way to ``logs``, nor to ``temp`` but for what is named below it."""

    work: Path
    """JVM and Python work here."""
    reports: Path
    """What the JVM connected to and trusts."""
    logs: Path
    temp: Path
    """Short, and the agent's."""

    @property
    def scratch(self) -> Path:
        """Temporary files of JVM and Python, and Spark's sockets between them."""
        return self.temp / "tmp"

    @property
    def jvm(self) -> Path:
        """What JVM and agent have in common: the bridge, the socket of Spark's UI, the gateway's address."""
        return self.temp / "jvm"

    @property
    def bridge(self) -> Path:
        """The socket on which the agent listens for the JVM."""
        return self.jvm / "bridge"

    @property
    def events(self) -> Path:
        """The socket on which the agent listens for Spark's event log."""
        return self.jvm / "events"

    @property
    def gateway(self) -> Path:
        """Where the JVM says how Python reaches it."""
        return self.jvm / "gateway"

    @property
    def workload(self) -> Path:
        """The Workload API's socket and token files, which JVM and Python read."""
        return self.temp / "w"

    def jvm_place(self, identity: Path, host: str, ports: Mapping[str, int] | None) -> JvmPlace:
        """Where the JVM runs, as ``identity``."""
        return JvmPlace(identity, self.work, self.scratch, self.reports, host, ports)

    def make(self) -> None:
        """Create what is written; raises ``StoreError``."""
        for path in (self.work, self.reports, self.scratch, self.jvm):
            make_private_directory(path)
