"""Creating authorities and renewing an identity, killed with SIGKILL at every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash_injection import crash_reports

SCRIPT = Path(__file__).with_name("crash.py")
ROOT = Path(__file__).parents[3]


def test_authorities_are_whole_or_absent_after_a_crash_and_never_lost(tmp_path: Path) -> None:
    reports = crash_reports(SCRIPT, tmp_path, "init")
    assert len(reports) > 15, "the crashes did not hit the steps"
    for report in reports:
        assert report["found"] + report["made"] == 3
        assert report["kept"], f"a key was replaced after the crash at step {report['step']}"
        assert report["leftovers"] == []
    assert {report["found"] for report in reports} == {0, 1, 2, 3}, "every state in between was seen"


def test_identity_is_old_or_new_or_refused_after_a_crash_and_renewable(tmp_path: Path) -> None:
    """Between the renames of key and chain the set is mixed: it is refused, never used."""
    reports = crash_reports(SCRIPT, tmp_path, "issue")
    assert len(reports) > 10, "the crashes did not hit the steps"
    for report in reports:
        assert report["found"] in {"old", "new"} or "is not the key of" in report["found"]
        assert report["leftovers"] == []
    found = [report["found"] for report in reports]
    assert (found[0], found[-1]) == ("old", "new")
    assert len([what for what in found if what not in {"old", "new"}]) <= 1


@pytest.mark.parametrize("processes", [4])
def test_processes_that_start_at_once_make_one_set_of_authorities(processes: int, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from sluice.pki.config import PkiConfig; "
        "from sluice.pki.issuing.issuer import LocalIssuer; "
        "print(len(LocalIssuer(pathlib.Path(sys.argv[1]), PkiConfig()).ensure_authorities()))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "pki")],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    made = [int(process.communicate(timeout=60)[0]) for process in running]
    assert sorted(made) == [0] * (processes - 1) + [3], "one process made all three, the others found them"
