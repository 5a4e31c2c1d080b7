"""Where one JVM of Spark runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JvmPlace:
    """Its directories, and the address that it listens on.

    Attributes:
        identity: with ``peers``.
        work: its private working directory (shuffle files go into ``local`` below it).
        temp: a short private directory, see :func:`sluice.runtime.spark.jvm.tempdir.make_temp_dir`.
        reports: where it tells what it has connected to and what it trusts; it can write there.
        host: the address that it listens on and tells others.
        ports: assigned to it, by :data:`EXECUTOR_LISTENS` or :data:`DRIVER_LISTENS`; None: it listens where it wants.
    """

    identity: Path
    work: Path
    temp: Path
    reports: Path
    host: str
    ports: Mapping[str, int] | None = None
