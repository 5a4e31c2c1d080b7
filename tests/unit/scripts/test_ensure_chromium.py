"""scripts/ensure-chromium, with stand-ins for the system's programs.

What a machine without Chromium is told, and what happens on Debian as root.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "ensure-chromium"


class Machine:
    """A PATH with nothing on it but a shell, `cat` and the stand-ins of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for tool in ("sh", "cat"):
            found = shutil.which(tool)
            assert found is not None
            (folder / tool).symlink_to(found)

    def program(self, name: str, body: str) -> None:
        """Put a stand-in for ``name`` on the PATH."""
        path = self.folder / name
        path.write_text(f"#!{shutil.which('sh')}\n{body}\n")
        path.chmod(0o755)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the script there."""
        command = [str(self.folder / "sh"), str(SCRIPT)]
        return subprocess.run(command, env={"PATH": str(self.folder)}, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "bin")
    made.program("id", "echo 1000")
    return made


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_any_chromium_is_enough(machine: Machine, name: str) -> None:
    machine.program(name, "exit 1")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_user_is_told_what_to_install(machine: Machine) -> None:
    machine.program("apt-get", "echo must not be called")
    done = machine.run()
    assert done.returncode == 1
    assert "apt-get install chromium" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("known", [True, False])
def test_chromium_is_installed_for_root_on_debian(machine: Machine, known: bool) -> None:
    machine.program("id", "echo 0")
    machine.program("apt-cache", f"exit {0 if known else 1}")
    machine.program("apt-get", 'echo "apt-get $*"')
    done = machine.run()
    assert done.returncode == 0
    assert ("apt-get update -qq" in done.stdout) is not known
    assert "apt-get install -y -qq --no-install-recommends chromium" in done.stdout
