"""kill -9 at every write of the online authority: no token twice, nothing out that is not in the ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("ca_crash.py")
ROOT = Path(__file__).parents[3]


def test_authority_killed_at_every_write_keeps_its_promises(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(report["died"] for report in reports) >= 3 * 7, "the crashes did not hit the steps"
    for report in reports:
        what = (report["when"], report["step"])
        assert set(report["left"]) <= set(report["ledger"]), f"{what}: a certificate left that nobody knows of"
        assert report["token_records"] == 1, f"{what}: the token was used {report['token_records']} times"
        assert report["granted_later"] <= 1, what
        assert report["count"] == len(report["ledger"]), what
    assert {len(report["left"]) for report in reports} == {0, 1, 2, 3}, "every state in between was seen"
    assert {report["granted_later"] for report in reports} == {0, 1}, "tokens survived, and tokens were used up"
    assert any(report["recovered"] for report in reports), "a torn record was repaired"
    assert any(report["repairs"] >= 2 for report in reports), "repairs were killed too"
    survived = [report for report in reports if not report["died"]]
    assert [len(report["left"]) for report in survived] == [3, 3, 3], "and undisturbed it does all its work"
