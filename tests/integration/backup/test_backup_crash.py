"""Backups and restorations that are killed at any moment.

A backup is then absent or complete. A home is the old one, absent, or the new one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import sluice
from tests.crash_injection import crash_reports
from tests.integration.backup.lived_in import LivedIn

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("backup_crash.py")
EVERY = {"create": "2", "restore": "9", "replace": "9"}
"""Besides the last steps: all of them take a minute."""


@pytest.mark.timeout(300)
def test_killed_creation_leaves_no_backup_or_a_whole_one(lived_in: LivedIn) -> None:
    found = crash_reports(SCRIPT, lived_in.root, "create", EVERY["create"], seconds=280)
    assert len(found) > 5
    assert {each["found"] for each in found} <= {"absent", "made"}
    assert {each["then"] for each in found} == {"made"}
    # A file that is not complete keeps its odd name; second names of jobs' files go with the next backup.
    assert all(name.startswith(".made.") for each in found for name in each["left"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("verb", "before"), [("restore", "absent"), ("replace", "old")])
def test_a_killed_restoration_leaves_the_old_home_or_no_home_or_the_new_one(
    lived_in: LivedIn, verb: str, before: str
) -> None:
    lived_in.back_up()
    found = crash_reports(SCRIPT, lived_in.root, verb, EVERY[verb], seconds=280)
    assert len(found) > 5
    assert {each["found"] for each in found} <= {before, "new"}
    assert {each["then"] for each in found} == {"new"}
    if verb == "replace":
        assert {each["kept"] for each in found} == {1}, "the home of before is always somewhere"


@pytest.mark.parametrize("size", [100, 5_000, 20_000])
def test_backup_creation_on_a_full_disk_leaves_no_file(lived_in: LivedIn, size: int) -> None:
    """A file size limit stands in for a full disk: write(2) fails in the middle of the backup."""
    made = limited(
        size, "create", lived_in.root / "made", "--home", lived_in.home.root, "--recipient", lived_in.recipient
    )
    assert made.returncode == 1, made.stderr
    assert "cannot write" in made.stderr
    assert not list(lived_in.root.glob("*made*"))
    assert not list((lived_in.home.root / "ha").glob(".*"))


def test_a_restoration_on_a_full_disk_leaves_no_home(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    target = lived_in.root / "target"
    done = limited(2_000, "restore", backup, "--home", target, "--identity", lived_in.key, "--accept-lost-revocations")
    assert done.returncode == 1, done.stderr
    assert "cannot write" in done.stderr
    assert not list(lived_in.root.glob("*target*"))
    again = sluice(
        "backup", "restore", backup, "--home", target, "--identity", lived_in.key, "--accept-lost-revocations"
    )
    assert again.returncode == 0, again.stderr


def limited(size: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``sluice backup`` in a process that cannot write files larger than ``size`` bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.run(
        [sys.executable, "-B", "-m", "sluice.cli.main", "backup", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
