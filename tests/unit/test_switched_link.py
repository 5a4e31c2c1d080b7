"""A running process and the link to its environment, which an upgrade switches meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
import sluice
os.symlink("new", "current.new")
os.replace("current.new", "current")
import sluice.late
print(sluice.late.RELEASE, sluice.late.__file__)
"""


def test_late_imports_of_a_process_are_from_its_own_release_after_the_link_switches(tmp_path: Path) -> None:
    for release in ("old", "new"):
        package = tmp_path / release / "sluice"
        package.mkdir(parents=True)
        shutil.copy2(ROOT / "sluice" / "__init__.py", package)
        (package / "late.py").write_text(f"RELEASE = {release!r}\n")
    (tmp_path / "current").symlink_to("old")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'current')!r})\n{PROGRAM}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout.split() == ["old", str(tmp_path / "old" / "sluice" / "late.py")], ended.stderr
