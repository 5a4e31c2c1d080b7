"""Finding a Java runtime and Spark's jars."""

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
"""Oldest Java that Spark 4 runs on (https://spark.apache.org/docs/latest/#downloading)."""

PREFERRED_JAVA = 25
"""Where several are installed, Spark's JVMs start fastest with this one."""
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
    """A usable Java runtime: its ``java`` command, its major version, and all it says of its build."""

    executable: Path
    major: int
    build: str = ""

    @property
    def home(self) -> Path:
        """Its directory, for ``JAVA_HOME``."""
        return self.executable.resolve().parent.parent


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java of ``JAVA_HOME``, else of ``PATH``; raises :class:`JavaNotFound` saying exactly what to install."""
    env = os.environ if environment is None else environment
    home = env.get("JAVA_HOME", "")
    if home:
        candidate = Path(home) / "bin" / "java"
        if not os.access(candidate, os.X_OK):
            raise JavaNotFound(f"JAVA_HOME is {home}, but {candidate} cannot be executed", _INSTALL)
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
        raise JavaNotFound(f"{executable} -version gave no version (exit code {run.returncode})", _INSTALL)
    return int(match[1]), told[:MAX_BUILD_CHARACTERS]


def find_preferred_java(environment: Mapping[str, str] | None = None, installed: Sequence[str] = INSTALLED) -> Java:
    """The best Java for Spark's JVMs: that of ``JAVA_HOME``, else an installed Java 25, else that of :func:`find_java`.

    From Java 25 on there are AOT caches, with which a JVM starts fastest (ADR 115).

    Args:
        environment: default: this process's.
        installed: patterns of where Javas are installed.

    Raises:
        JavaNotFound: there is none; it says what to install.
    """
    env = os.environ if environment is None else environment
    if not env.get("JAVA_HOME"):
        for home in _preferred(installed):
            with contextlib.suppress(JavaNotFound):
                return find_java({"JAVA_HOME": str(home)})
    return find_java(env)


def _preferred(installed: Sequence[str]) -> list[Path]:
    """Homes of Javas that are preferred, the best first."""
    homes = dict.fromkeys(home.resolve() for each in installed for home in sorted(Path("/").glob(each.lstrip("/"))))
    return [home for home in homes if _told_version(home).partition(".")[0] == str(PREFERRED_JAVA)]


def _told_version(home: Path) -> str:
    """The version in a Java's file ``release``; empty where it has none."""
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
        """All jars, explicit and ordered (a wildcard would follow the order of the folder)."""
        return os.pathsep.join(str(jar) for jar in self.jars)


def find_spark() -> SparkDistribution:
    """The Spark that the installed pyspark brings; raises :class:`SparkError` when its jars are missing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkError("pyspark is not installed", "pip install sluice installs it")
    home = Path(spec.origin).parent
    jars = tuple(sorted((home / "jars").glob("*.jar")))
    core = next((jar for jar in jars if jar.name.startswith("spark-core_")), None)
    if core is None:
        raise SparkError(f"{home} has no Spark jars", "install the full pyspark, not pyspark-client")
    return SparkDistribution(home, core.stem.rpartition("-")[2], jars)
