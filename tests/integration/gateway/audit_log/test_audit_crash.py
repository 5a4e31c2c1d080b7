"""The audit log is killed with SIGKILL at every write.

Every acknowledged record is in the log exactly once, and the chain has no gap.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash_injection import crash_reports

SCRIPT = Path(__file__).with_name("audit_crash.py")


def test_an_audit_log_killed_at_any_step_keeps_every_acknowledged_record(tmp_path: Path) -> None:
    reports = crash_reports(SCRIPT, tmp_path)
    assert sum(report["died"] for report in reports) >= 3 * 12, "the crashes did not hit the steps"
    for report in reports:
        what = (report["when"], report["step"])
        found = report["found"]
        assert found == sorted(set(found)), (what, "twice or out of order", found)
        assert set(report["told"]) <= set(found), (what, "acknowledged and lost")
        # A crash between writing and acknowledging may leave one record more each time.
        assert len(found) - len(report["told"]) <= report["died"] + report["again"], what
        assert report["taken"] == report["requests"], (what, "lines of the access log")
        assert report["unsigned"] == 0, what
    assert any(report["recovered"] for report in reports if report["when"] == "torn")
    assert not any(report["recovered"] for report in reports if report["when"] != "torn")
