"""The online authority killed with SIGKILL at every write.

No token is used twice, and no certificate gets out that is not in the ledger.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash_injection import crash_reports

SCRIPT = Path(__file__).with_name("ca_crash.py")


def test_an_authority_killed_at_any_write_uses_no_token_twice_and_records_every_certificate(tmp_path: Path) -> None:
    reports = crash_reports(SCRIPT, tmp_path)
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
