"""The directories and the address of one Spark JVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JvmPlace:
    """The directories and the address of one Spark JVM.

    Attributes:
        identity: its identity directory, with ``peers``.
        work: its private working directory (shuffle files go into ``local`` below it).
        temp: a short private directory, see :func:`sluice.runtime.spark.jvm.tempdir.make_temp_dir`.
        reports: the writable directory for its reports about connections and trust.
        host: the address that it listens on and announces.
        ports: its assigned ports, by :data:`EXECUTOR_LISTENS` or :data:`DRIVER_LISTENS`; None: it chooses them itself.
    """

    identity: Path
    work: Path
    temp: Path
    reports: Path
    host: str
    ports: Mapping[str, int] | None = None
