"""Where in a job code runs."""

from __future__ import annotations

import enum


class Place(enum.StrEnum):
    """Where in a job code runs."""

    DRIVER = "driver"
    """The pipeline's own Python."""
    UDF = "udf"
    """A Python worker of an executor."""
    DRIVER_JVM = "driver-jvm"
    """The driver's JVM, by py4j."""
    EXECUTOR_JVM = "executor-jvm"
    """An executor's JVM, by compiled expressions."""


PYTHON = (Place.DRIVER, Place.UDF)
