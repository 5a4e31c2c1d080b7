"""The wheel, built as for a release, and an environment with only the wheel and its requirements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 300
INSTALL_SECONDS = 600
COMMAND_SECONDS = 400


@dataclass(frozen=True)
class Distributions:
    """The distributions that were built.

    Attributes:
        wheel: built from the tree.
        source: the source distribution.
        wheel_of_source: built from the source distribution.
    """

    wheel: Path
    source: Path
    wheel_of_source: Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The distributions, built by the script that builds a release (scripts/make-wheel)."""
    of_tree, of_source = tmp_path_factory.mktemp("of-tree"), tmp_path_factory.mktemp("of-source")
    script = ROOT / "scripts" / "make-wheel"
    subprocess.run([script, of_tree], check=True, timeout=BUILD_SECONDS)
    subprocess.run([script, of_source, "--sdist"], check=True, timeout=BUILD_SECONDS)
    (wheel,), (source,), (wheel_of_source,) = of_tree.glob("*.whl"), of_source.glob("*.tar.gz"), of_source.glob("*.whl")
    return Distributions(wheel, source, wheel_of_source)


@dataclass(frozen=True)
class Installed:
    """The program in an environment of its own, and an empty folder to use it in.

    Attributes:
        environment: the virtual environment.
        folder: the working directory, which is also the home directory.
    """

    environment: Path
    folder: Path

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, without help from this process's environment variables."""
        passed = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "TMPDIR") if name in os.environ}
        program, *arguments = argv
        return subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=self.folder,
            env=passed | {"HOME": str(self.folder), "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def sluice(self, *arguments: str | Path) -> str:
        """Return the output of ``sluice ARGUMENTS``, which must succeed."""
        done = self.run("sluice", *arguments)
        assert done.returncode == 0, f"sluice {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments: str | Path) -> Any:
        """Return the decoded answer of a command with ``--json``."""
        return json.loads(self.sluice(*arguments, "--json"))


@pytest.fixture(scope="session")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The program installed as in the image: the locked requirements first, then only the wheel."""
    place = tmp_path_factory.mktemp("installed")
    environment, folder = place / "environment", place / "folder"
    folder.mkdir(mode=0o700)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=INSTALL_SECONDS)
    pip: list[str | Path] = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    for name in ("build", "run"):
        requirements = ROOT / "requirements" / f"{name}.txt"
        locked = [*pip, "--no-build-isolation", "--require-hashes", "--requirement", requirements]
        subprocess.run(locked, check=True, timeout=INSTALL_SECONDS)
    subprocess.run([*pip, "--no-deps", "--no-index", distributions.wheel], check=True, timeout=INSTALL_SECONDS)
    return Installed(environment, folder)
