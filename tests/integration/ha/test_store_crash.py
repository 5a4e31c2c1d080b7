"""Whenever a leader is killed, the next leader finds each job in exactly one state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash_injection import crash_reports

SCRIPT = Path(__file__).with_name("store_crash.py")


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One report per step at which a job's leader was killed; in the last report it was not killed."""
    return crash_reports(SCRIPT, tmp_path_factory.mktemp("crash"))


def test_the_crashes_hit_every_stage_of_a_job(crashes: list[dict[str, Any]]) -> None:
    stages = {each["confirmed"][-1] if each["confirmed"] else "" for each in crashes if each["killed"]}
    assert stages == {"", "accepted", "attempt 1", "ended", "clean"}
    assert crashes[-1]["confirmed"][-1] == "forgotten"


def test_a_confirmed_submission_is_never_lost(crashes: list[dict[str, Any]]) -> None:
    for each in crashes:
        if "accepted" in each["confirmed"] and "clean" not in each["confirmed"]:
            assert each["accepted"] + len(each["ended"]) == 1, each


def test_a_recovered_submission_is_complete_and_undamaged(crashes: list[dict[str, Any]]) -> None:
    for each in crashes:
        assert each["blobs"] == [True] * each["accepted"], each
        assert each["damaged"] == [], each


def test_a_job_with_a_confirmed_result_is_not_run_again_and_its_result_stays(crashes: list[dict[str, Any]]) -> None:
    for each in crashes:
        if "ended" in each["confirmed"]:
            assert each["accepted"] == 0, each
            if "clean" not in each["confirmed"]:
                assert each["ended"] == ["FINISHED"], each


def test_no_two_attempts_have_the_same_number(crashes: list[dict[str, Any]]) -> None:
    for each in crashes:
        if each["attempts"] and "attempt 1" in each["confirmed"]:
            assert each["attempts"] == [2], each


def test_the_next_leader_removes_what_a_killed_leader_left_behind(crashes: list[dict[str, Any]]) -> None:
    for each in crashes:
        assert each["left"] == each["accepted"], each
        assert not each["still dirty"], each
        assert each["again"] == each["accepted"], each


def test_the_epoch_of_the_next_leader_is_higher(crashes: list[dict[str, Any]]) -> None:
    assert {each["epoch"] for each in crashes if each["confirmed"]} == {2}
