"""Errors of the Spark part of the runtime."""

from __future__ import annotations

from sluice.core import SluiceError


class SparkError(SluiceError):
    """Base class of the errors of package ``sluice.runtime.spark``."""


class JavaNotFound(SparkError):
    """There is no Java runtime that Spark can use."""


class PluginBuildFailed(SparkError):
    """The Scala plugin did not compile against the installed pyspark."""


class ClassArchiveFailed(SparkError):
    """The class archive for Spark's JVMs could not be created. JVMs start without it, but more slowly."""


class ForbiddenSparkConf(SparkError):
    """The job may not change this Spark setting."""


class PackageRefused(SparkError):
    """A file that belongs to a pipeline is neither a module nor an archive."""


class DriverFailed(SparkError):
    """The driver's JVM or its Python process did not start, or ended abnormally."""


class WarmProcessUnusable(DriverFailed):
    """A waiting JVM or Python process cannot become the driver's. No code of the job has run in it."""


class BridgeProtocolError(SparkError):
    """A message on the bridge between the driver's JVM and its agent violates the protocol."""
