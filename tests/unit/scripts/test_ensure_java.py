"""scripts/ensure-java, with stand-ins for the system's programs.

What a machine without Java is told, and what happens on Debian as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "ensure-java"
TOOLS = ("sh", "sed", "head", "cat", "env")


class Machine:
    """A PATH with nothing on it but a few tools and the stand-ins of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (folder / tool).symlink_to(found)

    def program(self, name: str, body: str) -> None:
        """Put a stand-in for ``name`` on the PATH."""
        path = self.folder / name
        path.write_text(f"#!{shutil.which('sh')}\n{body}\n")
        path.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script there."""
        return subprocess.run(
            [str(self.folder / "sh"), str(SCRIPT)],
            env={"PATH": str(self.folder)} | environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "bin")
    made.program("id", "echo 1000")
    return made


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_recent_java_is_enough(machine: Machine, version: str) -> None:
    machine.program("java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("version", "named"),
    [pytest.param(None, "no Java runtime was found", id="none"), pytest.param("11.0.2", "Java 11", id="old")],
)
def test_without_a_recent_java_the_user_is_told_what_to_install(
    machine: Machine, version: str | None, named: str
) -> None:
    if version is not None:
        machine.program("java", f"echo 'openjdk version \"{version}\"' >&2")
    done = machine.run()
    assert done.returncode == 1
    assert named in done.stderr
    assert "sudo apt-get install openjdk-17-jre-headless" in done.stderr


def test_java_home_comes_first(machine: Machine, tmp_path: Path) -> None:
    machine.program("java", "echo 'openjdk version \"11\"' >&2")
    elsewhere = Machine(tmp_path / "jdk")
    (elsewhere.folder / "bin").mkdir()
    elsewhere.program("bin/java", "echo 'openjdk version \"21\"' >&2")
    assert machine.run(JAVA_HOME=str(elsewhere.folder)).returncode == 0


def test_root_on_debian_gets_the_headless_runtime_installed(machine: Machine, tmp_path: Path) -> None:
    called = tmp_path / "called"
    machine.program("id", "echo 0")
    machine.program("apt-get", f'echo "$@" >> {called}')
    machine.program("apt-cache", '[ "$2" = openjdk-17-jre-headless ]')
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert called.read_text().splitlines() == ["install -y -qq --no-install-recommends openjdk-17-jre-headless"]


def test_the_script_is_executable() -> None:
    assert os.access(SCRIPT, os.X_OK)
