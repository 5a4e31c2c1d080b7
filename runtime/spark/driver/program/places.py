"""The directories of one driver, and which of its processes may write to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.core import make_private_directory
from sluice.runtime.spark.jvm import JvmPlace


@dataclass(frozen=True, slots=True)
class DriverPlaces:
    """The directories of one attempt. The job has no access to ``logs``, and in ``temp`` only to those named below."""

    work: Path
    """The working directory of JVM and Python."""
    reports: Path
    """The JVM's reports about its connections and what it trusts."""
    logs: Path
    temp: Path
    """A directory of the agent with a short path."""

    @property
    def scratch(self) -> Path:
        """The directory for temporary files of JVM and Python, and for Spark's sockets between them."""
        return self.temp / "tmp"

    @property
    def jvm(self) -> Path:
        """The directory that JVM and agent share: the bridge, the socket of Spark's UI, the gateway's address."""
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
        """The file in which the JVM publishes the address of its gateway for Python."""
        return self.jvm / "gateway"

    @property
    def workload(self) -> Path:
        """The directory of the Workload API's socket and token files, which JVM and Python read."""
        return self.temp / "w"

    def jvm_place(self, identity: Path, host: str, ports: Mapping[str, int] | None) -> JvmPlace:
        """The directories and address of the JVM, with the identity directory ``identity``."""
        return JvmPlace(identity, self.work, self.scratch, self.reports, host, ports)

    def make(self) -> None:
        """Create the writable directories.

        Raises:
            StoreError: one cannot be created.
        """
        for path in (self.work, self.reports, self.scratch, self.jvm):
            make_private_directory(path)
