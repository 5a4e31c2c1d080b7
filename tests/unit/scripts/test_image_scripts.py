"""What the scripts that make images refuse, with stand-ins for the programs that they call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def program(path: Path, content: str) -> None:
    path.write_text(f"#!/bin/sh\n{content}\n")
    path.chmod(0o755)


def test_a_release_is_never_built_on_a_base_that_this_machine_has_made(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("scripts/make-release-image", "compose/Dockerfile"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    program(tree / "scripts" / "make-image", f'echo "$BASE_IMAGE" >"{tmp_path}/base"; exit 1')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath="]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], cwd=tree, check=True)
    environment = {key: value for key, value in os.environ.items() if key != "BASE_IMAGE"}
    subprocess.run([tree / "scripts/make-release-image", tmp_path / "made"], env=environment, check=False, timeout=60)
    base = re.search(r"^ARG BASE_IMAGE=(.+)$", (ROOT / "compose" / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    assert (tmp_path / "base").read_text().strip() == base[1]


def base_image(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run make-base-image, with a debootstrap that writes its arguments to a file and fails."""
    programs = {"id": "echo 0", "apt-get": "exit 0", "sleep": "exit 0"}
    for name, content in (programs | {"debootstrap": f'echo "$@" >>"{tmp_path}/arguments"; exit 1'}).items():
        program(tmp_path / name, content)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    return subprocess.run(
        [ROOT / "scripts" / "make-base-image", "x"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_base_image_is_made_of_signed_packages_only(tmp_path: Path) -> None:
    done = base_image(tmp_path)
    assert done.returncode == 1
    if "/etc/pip.conf has a password" not in done.stderr:  # of this machine: then nothing is made at all
        lines = (tmp_path / "arguments").read_text().splitlines()
        assert lines
        assert all("--force-check-gpg" in line for line in lines)


def test_a_base_image_gets_no_password_of_a_package_index(tmp_path: Path) -> None:
    (tmp_path / ".pip").mkdir()
    (tmp_path / ".pip" / "pip.conf").write_text("[global]\nindex-url = https://me:secret@example.org/simple\n")
    done = base_image(tmp_path)
    assert done.returncode == 1
    assert "has a password" in done.stderr
    assert "secret" not in done.stderr
    assert not (tmp_path / "arguments").exists()
