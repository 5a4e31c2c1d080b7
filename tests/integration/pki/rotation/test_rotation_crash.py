"""Every command of a rotation, killed with SIGKILL at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash_injection import crash_reports

SCRIPT = Path(__file__).with_name("rotation_crash.py")


@pytest.mark.parametrize(
    ("verb", "steps", "phases", "refusal"),
    [
        pytest.param("prepare", 25, {"A", "A+B"}, "trusted everywhere already", id="prepare"),
        pytest.param("activate", 20, {"A+B", "B+A"}, "", id="activate"),
        pytest.param("finish", 20, {"B+A", "B", "A"}, "nothing to finish", id="finish"),
        pytest.param("abort", 25, {"B+A", "A+B", "A again", "A"}, "nothing to abort", id="abort"),
    ],
)
def test_every_crash_leaves_a_working_phase_and_the_verb_can_be_repeated(
    verb: str, steps: int, phases: set[str], refusal: str, tmp_path: Path
) -> None:
    reports = crash_reports(SCRIPT, tmp_path, verb)
    assert len(reports) > steps, "the crashes did not hit the steps"
    assert {report["phase"] for report in reports} == phases, "every phase in between was seen"
    for report in reports:
        assert report["signer_first"], "whoever signs is the first that is trusted"
        assert report["usable"], "the identity is whole, or refused as a half"
        # Killed after the last change, there is nothing to repeat, and it says so.
        assert report["repeated"] == "done" or (refusal and refusal in report["repeated"])
        assert (report["end"], report["trusted"]) == ("A", 1)
        # Only when the end itself was cut short: the next verb removes it, and no key is in it.
        assert [path for path in report["leftovers"] if ".rotation." not in path] == []
        assert not report["keys_left"]
