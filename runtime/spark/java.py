"""Finding a Java runtime and Spark's jars."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.spark.errors import JavaNotFound, SparkError

MINIMUM_JAVA = 17
"""Oldest Java that Spark 4 runs on (https://spark.apache.org/docs/latest/#downloading)."""

VERSION_TIMEOUT_SECONDS = 30
MAX_BUILD_CHARACTERS = 2000

_INSTALL = (
    f"install a Java {MINIMUM_JAVA} runtime: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), "
    "dnf install java-17-openjdk-headless (Fedora, RHEL), brew install openjdk@17 (macOS); or set JAVA_HOME"
)
_VERSION = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java runtime: its ``java`` command, its major version, and all it says of its build."""

    executable: Path
    major: int
    build: str = ""


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
