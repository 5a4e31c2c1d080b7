"""Compiles the Scala plugin with the compiler in pyspark, once per version of Spark and of the sources.

This requires only a Java *runtime*: pyspark's jars contain ``scala.tools.nsc.Main``, and Python packs the jar file. The
jar is kept in the cache of ``runtime.spark.code_cache`` and reused only if its content is unchanged.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from sluice.core import StoreError, write_public
from sluice.runtime.spark.code_cache import cache_directory, is_usable, make_once
from sluice.runtime.spark.errors import PluginBuildFailed
from sluice.runtime.spark.java import Java, SparkDistribution, find_java, find_spark

COMPILE_TIMEOUT_SECONDS = 300

PLUGIN_SOURCES = Path(__file__).parent / "plugin"

AGENT_CLASS = "io.sluice.tls.Agent"
CLUSTER_MANAGER_CLASS = "org.apache.spark.scheduler.cluster.sluice.SluiceClusterManager"

_MANIFEST = f"""Manifest-Version: 1.0
Premain-Class: {AGENT_CLASS}
Created-By: sluice

"""
_SERVICES = {"META-INF/services/org.apache.spark.scheduler.ExternalClusterManager": f"{CLUSTER_MANAGER_CLASS}\n"}
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the oldest in a zip file; fixed, so that equal sources give equal jars
_COMPILER_OUTPUT_CHARACTERS = 4000


def plugin_sources() -> tuple[Path, ...]:
    """The plugin's Scala files, in a fixed order."""
    return tuple(sorted(PLUGIN_SOURCES.rglob("*.scala")))


def source_digest(sources: Iterable[Path], spark_version: str) -> str:
    """A digest of the plugin's inputs: Spark's version, the manifest, and names and contents of the sources."""
    digest = hashlib.sha256()
    for text in (spark_version, _MANIFEST, *(name + content for name, content in sorted(_SERVICES.items()))):
        digest.update(text.encode() + b"\0")
    for source in sources:
        digest.update(source.name.encode() + b"\0" + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:20]


def ensure_plugin(
    *,
    java: Java | None = None,
    spark: SparkDistribution | None = None,
    cache: Path | None = None,
    warnings_fatal: bool = False,
) -> Path:
    """The path of the plugin's jar. Compiles it if the cache has no usable one for these sources.

    Raises:
        JavaNotFound: there is no Java runtime that Spark can use.
        PluginBuildFailed: the compiler rejected the sources (the message contains its output), or other users can write
            to the cache.
    """
    spark = spark or find_spark()
    sources = plugin_sources()
    if not sources:
        raise PluginBuildFailed(f"{PLUGIN_SOURCES} has no Scala sources", "install sluice again")
    directory = cache or cache_directory()
    jar = directory / f"sluice-spark-{spark.version}-{source_digest(sources, spark.version)}.jar"
    consequence = f"the Scala plugin {jar} is compiled again"
    if is_usable(jar, consequence):
        return jar

    def build() -> None:
        _build(java or find_java(), spark, sources, jar, warnings_fatal=warnings_fatal)

    try:
        make_once(jar, build, lock="plugin.lock", consequence=consequence)
    except StoreError as error:
        raise PluginBuildFailed(f"cannot store the Scala plugin: {error.what}", error.remedy) from error
    return jar


def _build(java: Java, spark: SparkDistribution, sources: Iterable[Path], jar: Path, *, warnings_fatal: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="plugin-", dir=jar.parent) as work:
        classes = Path(work) / "classes"
        classes.mkdir()
        _compile(java, spark, sources, classes, warnings_fatal=warnings_fatal)
        write_public(jar, _pack(classes, Path(work) / "plugin.jar"))


def _compile(
    java: Java, spark: SparkDistribution, sources: Iterable[Path], classes: Path, *, warnings_fatal: bool
) -> None:
    argfile = classes.parent / "compiler.args"
    argfile.write_text(f'-cp\n"{spark.class_path}"\n')
    argv = [
        str(java.executable),
        "-Xss8m",
        "-XX:TieredStopAtLevel=1",
        f"@{argfile}",
        "scala.tools.nsc.Main",
        "-usejavacp",
        "-deprecation",
        "-feature",
        *(["-Xfatal-warnings"] if warnings_fatal else []),
        "-encoding",
        "UTF-8",
        "-d",
        str(classes),
        *map(str, sources),
    ]
    env = {"PATH": os.defpath, "LANG": "C.UTF-8"}
    try:
        run = subprocess.run(
            argv,
            cwd=classes.parent,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginBuildFailed(f"the Scala compiler did not run: {error}") from error
    if run.returncode != 0:
        output = (run.stdout + run.stderr)[-_COMPILER_OUTPUT_CHARACTERS:]
        raise PluginBuildFailed(
            f"the Scala plugin does not compile against Spark {spark.version}:\n{output}",
            "use the pyspark version that pyproject.toml names",
        )


def _pack(classes: Path, jar: Path) -> bytes:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        entries = {"META-INF/MANIFEST.MF": _MANIFEST.encode()}  # java.util.jar requires the manifest first
        entries.update((name, content.encode()) for name, content in _SERVICES.items())
        for file in sorted(classes.rglob("*.class")):
            entries[file.relative_to(classes).as_posix()] = file.read_bytes()
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), content, zipfile.ZIP_DEFLATED)
    return jar.read_bytes()
