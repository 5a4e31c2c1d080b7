"""Errors of the Spark side of the runtime."""

from __future__ import annotations

from sluice.core import SluiceError


class SparkError(SluiceError):
    """Base of the errors of package ``sluice.runtime.spark``."""


class JavaNotFound(SparkError):
    """There is no Java runtime that Spark can use."""


class PluginBuildFailed(SparkError):
    """The Scala plugin did not compile against the installed pyspark."""


class ClassArchiveFailed(SparkError):
    """No archive of Spark's classes could be made; JVMs start without, and take longer."""


class ForbiddenSparkConf(SparkError):
    """The job may not change this Spark setting."""


class PackageRefused(SparkError):
    """Something that came with a pipeline is neither a module nor an archive."""


class DriverFailed(SparkError):
    """The driver's JVM or its Python process did not start or ended out of order."""


class WaitedInVain(DriverFailed):
    """A JVM or a Python that has waited cannot be the driver's; no code of the job has run in it."""


class BridgeProtocolError(SparkError):
    """Something on the bridge between the driver's JVM and its agent that does not follow the protocol."""
