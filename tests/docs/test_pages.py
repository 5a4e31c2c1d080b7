"""Runs each page literally, as a newcomer would follow it.

The commands run one after the other, in a copy of the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import has_commands, script_of

ROOT = Path(__file__).parents[2]
PAGES = [
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/tutorial/*.md")), *sorted(ROOT.glob("docs/howto/*.md"))]
    if has_commands(page.read_text(encoding="utf-8"))
]
PAGE_SECONDS = 900


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A copy of the repository's files as they are now, with a link to the existing virtual environment."""
    tree = tmp_path / "sluice"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    yield tree
    for home in {each.parent.parent for each in tree.rglob("run/cluster.json")}:
        subprocess.run([ROOT / ".venv/bin/sluice", "down", "--home", home], check=False, timeout=60)


@pytest.mark.timeout(PAGE_SECONDS + 90)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_documentation_page_works(page: str, clone: Path, tmp_path: Path) -> None:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": cache, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    for passed in ("JAVA_HOME", "TMPDIR"):
        if passed in os.environ:
            environment[passed] = os.environ[passed]
    run = subprocess.run(
        ["bash", "-c", script_of((clone / page).read_text(encoding="utf-8"))],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )
    (tmp_path / "output.txt").write_text(run.stdout, encoding="utf-8")
    assert run.returncode == 0, f"{page}, after\n{run.stdout[-3000:]}"
