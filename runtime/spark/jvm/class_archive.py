"""Archives of loaded classes, with which Spark's JVMs start in two thirds of the time (ADR 59, ADR 115).

An archive fits one JVM and one class path, byte for byte, so its name has both in it. A JVM that finds that it does not
fit after all goes on without, and says so in its log. :mod:`sluice.runtime.spark.training` makes it.

Java 25 and newer get an AOT cache (JEP 483, 514): classes, loaded and linked. Older ones get an archive of class data
sharing (JEP 310), whose classes each JVM loads and links itself.

An archive is code, and kept and checked as such (see :mod:`sluice.runtime.spark.code_cache`).
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
"""Of what is trained and how: another number makes other archives."""
AOT_JAVA = 25
"""The first with AOT caches that a JVM with opened packages and a Java agent can use."""
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
"""The JVM's own: after how many calls and rounds of loops C2 compiles a method."""
LATER_C2 = tuple(f"-XX:{name}={TIER4_FACTOR * calls}" for name, calls in _TIER4_THRESHOLDS.items())
"""C2 compiles what is used twenty times as much as usual, and not what a short job runs a few thousand times."""
WITHOUT_PROFILES = "-XX:-AOTReplayTraining"
"""With profiles from an AOT cache, C2 would compile at once what it has compiled in the rehearsal."""


def has_aot_caches(java: Java) -> bool:
    """Whether this JVM makes and uses AOT caches."""
    return java.major >= AOT_JAVA


def module_options(java: Java) -> tuple[str, ...]:
    """What JVMs that use an archive are started with: where it would be an AOT cache, without the Vector API."""
    return MODULE_OPTIONS if has_aot_caches(java) else (*MODULE_OPTIONS, VECTOR_MODULE_OPTION)


def archive_file(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> Path:
    """The path of the archive for this JVM and these jars; it need not exist.

    A JVM compares its own build, and names, sizes and times of the jars; so does this. The plugin decides which classes
    are rewritten when they are loaded, and so which an archive must not have.
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
    """The archive for this JVM and these jars, checked; None when there is none that may be used."""
    archive = archive_file(java, spark, cache=cache)
    if not checksum_file(archive).exists():  # there is none, or it is just being made
        return None
    return archive if is_usable(archive, f"JVMs start without the class archive {archive}") else None


def has_class_archive(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> bool:
    """Whether there is an archive, at a glance: it is not checked."""
    return checksum_file(archive_file(java, spark, cache=cache)).is_file()


def find_spark_java(
    spark: SparkDistribution,
    *,
    cache: Path | None = None,
    environment: Mapping[str, str] | None = None,
    installed: Sequence[str] = INSTALLED,
) -> Java:
    """The Java that Spark's JVMs are started with: the preferred one once it has an archive, else that of ``PATH``.

    Without one it would start them no faster. ``JAVA_HOME`` decides, where it is set.

    Raises:
        JavaNotFound: there is none; it says what to install.
    """
    preferred = find_preferred_java(environment, installed)
    if has_class_archive(preferred, spark, cache=cache):
        return preferred
    try:
        return find_java(environment)
    except JavaNotFound:
        return preferred


def archive_options(archive: Path, log: Path) -> list[str]:
    """The options of a JVM that uses an archive of classes when it fits; ``log`` will say whether it did.

    A JVM that starts faster with an AOT cache also compiles less with C2 (:data:`LATER_C2`, :data:`WITHOUT_PROFILES`).
    """
    is_aot = archive.suffix == AOT_SUFFIX
    use = (
        ["-XX:AOTMode=auto", f"-XX:AOTCache={archive}", *LATER_C2]
        if is_aot
        else ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]
    )
    return [
        *use,
        # where it was made for: elsewhere each JVM would have to change, and so to hold, every page of it
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:ArchiveRelocationMode=0",
        *([WITHOUT_PROFILES] if is_aot else []),
        f'-Xlog:{"aot" if is_aot else "cds"}=info:file="{log}":uptime,level,tags:filecount=0',
    ]
