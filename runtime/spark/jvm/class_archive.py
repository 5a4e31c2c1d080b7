"""Class archives, which reduce the start time of Spark's JVMs to two thirds (ADR 59, ADR 115).

An archive fits exactly one JVM build and one class path, so both are part of its name. A JVM that finds a mismatch
starts without the archive and logs that. :mod:`sluice.runtime.spark.training` creates the archives.

Java 25 and later use an AOT cache (JEP 483, 514), which contains loaded and linked classes. Older versions use a class
data sharing archive (JEP 310), whose classes each JVM loads and links itself.

An archive is code, so it is stored and verified as code (see :mod:`sluice.runtime.spark.code_cache`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.runtime.spark.code_cache import cache_directory, checksum_file, is_usable
from sluice.runtime.spark.errors import JavaNotFound
from sluice.runtime.spark.java import INSTALLED, Java, SparkDistribution, find_java, find_preferred_java
from sluice.runtime.spark.jvm.options import MODULE_OPTIONS, VECTOR_MODULE_OPTION
from sluice.runtime.spark.plugin_build import plugin_sources, source_digest

FORMAT = 4
"""The version of the training procedure. A new number leads to new archives."""
AOT_JAVA = 25
"""The first Java version whose AOT caches work in a JVM with opened packages and a Java agent."""
PREFIX = "classes-"
AOT_SUFFIX = ".aot"
CDS_SUFFIX = ".jsa"
TIER4_FACTOR = 20
_TIER4_THRESHOLDS = {
    "Tier4InvocationThreshold": 5_000,
    "Tier4MinInvocationThreshold": 600,
    "Tier4CompileThreshold": 15_000,
    "Tier4BackEdgeThreshold": 40_000,
}
"""The JVM's defaults for the number of calls and loop iterations after which C2 compiles a method."""
LATER_C2 = tuple(f"-XX:{name}={TIER4_FACTOR * calls}" for name, calls in _TIER4_THRESHOLDS.items())
"""Raises the C2 thresholds, so that C2 skips methods that a short job calls a few thousand times."""
WITHOUT_PROFILES = "-XX:-AOTReplayTraining"
"""Ignores the profiles in an AOT cache. With them, C2 would at once compile what it compiled in the rehearsal."""


def has_aot_caches(java: Java) -> bool:
    """Whether this JVM supports AOT caches."""
    return java.major >= AOT_JAVA


def module_options(java: Java) -> tuple[str, ...]:
    """The module options of JVMs that use an archive. For an AOT cache they leave out the Vector API."""
    return MODULE_OPTIONS if has_aot_caches(java) else (*MODULE_OPTIONS, VECTOR_MODULE_OPTION)


def archive_file(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> Path:
    """The path of the archive for this JVM and these jars; it need not exist.

    The name depends on what a JVM compares: its build, and the names, sizes and times of the jars. It also depends on
    the plugin, which rewrites some classes when they are loaded: an archive must not contain these.
    """
    digest = hashlib.sha256(f"{FORMAT}\0{java.build}\0{spark.version}\0".encode())
    digest.update("\0".join(module_options(java)).encode() + b"\0")
    digest.update(source_digest(plugin_sources(), spark.version).encode() + b"\0")
    for jar in spark.jars:
        info = jar.stat()
        digest.update(f"{jar}\0{info.st_size}\0{int(info.st_mtime)}\0".encode())
    suffix = AOT_SUFFIX if has_aot_caches(java) else CDS_SUFFIX
    return (cache or cache_directory()) / f"{PREFIX}{digest.hexdigest()[:20]}{suffix}"


def find_class_archive(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> Path | None:
    """The verified archive for this JVM and these jars; None: there is no usable one."""
    archive = archive_file(java, spark, cache=cache)
    if not checksum_file(archive).exists():  # there is none, or it is being created
        return None
    return archive if is_usable(archive, f"JVMs start without the class archive {archive}") else None


def has_class_archive(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> bool:
    """Whether an archive exists. Does not verify it."""
    return checksum_file(archive_file(java, spark, cache=cache)).is_file()


def find_spark_java(
    spark: SparkDistribution,
    *,
    cache: Path | None = None,
    environment: Mapping[str, str] | None = None,
    installed: Sequence[str] = INSTALLED,
) -> Java:
    """The Java for Spark's JVMs: the preferred one once it has an archive, or else the one of ``PATH``.

    Without an archive the preferred Java starts no faster. ``JAVA_HOME`` takes precedence if it is set.

    Raises:
        JavaNotFound: there is none. The error says what to install.
    """
    preferred = find_preferred_java(environment, installed)
    if has_class_archive(preferred, spark, cache=cache):
        return preferred
    try:
        return find_java(environment)
    except JavaNotFound:
        return preferred


def archive_options(archive: Path, log: Path) -> list[str]:
    """The options of a JVM that uses a class archive if it fits. The JVM writes to ``log`` whether it did.

    With an AOT cache, the JVM also compiles less with C2 (:data:`LATER_C2`, :data:`WITHOUT_PROFILES`).
    """
    is_aot = archive.suffix == AOT_SUFFIX
    use = (
        ["-XX:AOTMode=auto", f"-XX:AOTCache={archive}", *LATER_C2]
        if is_aot
        else ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]
    )
    tag = "aot" if is_aot else "cds"
    return [
        *use,
        f"-Xlog:{tag}*=off",  # on standard output, where the job's own lines are
        # Map the archive at its original address: relocation would give each JVM a private copy of every page.
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:ArchiveRelocationMode=0",
        *([WITHOUT_PROFILES] if is_aot else []),
        f'-Xlog:{tag}=info:file="{log}":uptime,level,tags:filecount=0',
    ]
