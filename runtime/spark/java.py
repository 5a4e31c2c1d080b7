"""Finds a Java runtime and Spark's jars."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.spark.errors import JavaNotFound, SparkError

MINIMUM_JAVA = 17
"""The oldest Java version that Spark 4 supports (https://spark.apache.org/docs/latest/#downloading)."""

PREFERRED_JAVA = 25
"""The Java version with which Spark's JVMs start fastest, preferred if several are installed."""
INSTALLED = ("/usr/lib/jvm/*", "/opt/java/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")
MAX_RELEASE_CHARACTERS = 1 << 16

VERSION_TIMEOUT_SECONDS = 30
MAX_BUILD_CHARACTERS = 2000

_INSTALL = (
    f"install a Java {MINIMUM_JAVA} runtime: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), "
    "dnf install java-17-openjdk-headless (Fedora, RHEL), brew install openjdk@17 (macOS); or set JAVA_HOME"
)
_VERSION = re.compile(r'version "(\d+)')
_RELEASE = re.compile(r'^JAVA_VERSION="([^"]*)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java runtime: its ``java`` command, its major version, and its full build information."""

    executable: Path
    major: int
    build: str = ""

    @property
    def home(self) -> Path:
        """The directory for ``JAVA_HOME``."""
        return self.executable.resolve().parent.parent


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java of ``JAVA_HOME``, or else of ``PATH``.

    Raises:
        JavaNotFound: there is none that Spark can use. The error says what to install.
    """
    env = os.environ if environment is None else environment
    home = env.get("JAVA_HOME", "")
    if home:
        candidate = Path(home) / "bin" / "java"
        if not os.access(candidate, os.X_OK):
            raise JavaNotFound(f"JAVA_HOME is {home}, but {candidate} is not executable", _INSTALL)
    else:
        found = shutil.which("java", path=env.get("PATH", os.defpath))
        if found is None:
            raise JavaNotFound("there is no java command", _INSTALL)
        candidate = Path(found)
    major, build = _version(candidate)
    if major < MINIMUM_JAVA:
        raise JavaNotFound(f"{candidate} is Java {major}, Spark needs {MINIMUM_JAVA} or newer", _INSTALL)
    return Java(candidate.absolute(), major, build)


def _version(executable: Path) -> tuple[int, str]:
    try:
        run = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_SECONDS,
            check=False,
            env={"PATH": os.defpath, "LANG": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFound(f"{executable} does not run: {error}", _INSTALL) from error
    told = run.stderr + run.stdout
    match = _VERSION.search(told)
    if run.returncode != 0 or match is None:
        raise JavaNotFound(f"{executable} -version printed no version (exit code {run.returncode})", _INSTALL)
    return int(match[1]), told[:MAX_BUILD_CHARACTERS]


def find_preferred_java(environment: Mapping[str, str] | None = None, installed: Sequence[str] = INSTALLED) -> Java:
    """The best Java for Spark's JVMs: of ``JAVA_HOME``, or else an installed Java 25, or else of :func:`find_java`.

    Java 25 and later have AOT caches, with which a JVM starts fastest (ADR 115).

    Args:
        environment: default: the environment of this process.
        installed: glob patterns of Java home directories.

    Raises:
        JavaNotFound: there is none. The error says what to install.
    """
    env = os.environ if environment is None else environment
    if not env.get("JAVA_HOME"):
        for home in _preferred(installed):
            with contextlib.suppress(JavaNotFound):
                return find_java({"JAVA_HOME": str(home)})
    return find_java(env)


def _preferred(installed: Sequence[str]) -> list[Path]:
    """Home directories of the preferred Java version, the best first."""
    homes = dict.fromkeys(home.resolve() for each in installed for home in sorted(Path("/").glob(each.lstrip("/"))))
    return [home for home in homes if _release_version(home).partition(".")[0] == str(PREFERRED_JAVA)]


def _release_version(home: Path) -> str:
    """The version in the file ``release`` of a Java; empty: there is none."""
    try:
        with (home / "release").open(encoding="utf-8", errors="replace") as file:
            match = _RELEASE.search(file.read(MAX_RELEASE_CHARACTERS))
    except OSError:
        return ""
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class SparkDistribution:
    """The Spark inside the installed pyspark: its home folder and its jars, in a fixed order."""

    home: Path
    version: str
    jars: tuple[Path, ...]

    @property
    def class_path(self) -> str:
        """All jars, listed in a fixed order (with a wildcard the order would depend on the file system)."""
        return os.pathsep.join(str(jar) for jar in self.jars)


def find_spark() -> SparkDistribution:
    """The Spark in the installed pyspark.

    Raises:
        SparkError: pyspark is not installed, or its jars are missing.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkError("pyspark is not installed", "pip install sluice installs it")
    home = Path(spec.origin).parent
    jars = tuple(sorted((home / "jars").glob("*.jar")))
    core = next((jar for jar in jars if jar.name.startswith("spark-core_")), None)
    if core is None:
        raise SparkError(f"{home} has no Spark jars", "install the full pyspark, not pyspark-client")
    return SparkDistribution(home, core.stem.rpartition("-")[2], jars)
