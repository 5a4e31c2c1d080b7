"""How ``sluice queues`` shows what jobs wait for."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.cli.jobs.queues import _job_row, _queue_row

JOB = {"id": "j", "owner": "ada", "priority": 2, "slots": 1, "lacking": 3, "position": 4, "waits_for": "room"}


@pytest.mark.parametrize(
    ("job", "next_slot"),
    [
        pytest.param({"expected_by": None}, "unknown", id="unknown"),
        pytest.param({"expected_by": 1_048_400}, "in at most 48 s", id="soon"),
        pytest.param({"expected_by": 900_000}, "in at most 0 s", id="overdue"),
        pytest.param({"expected_by": None, "lacking": 0, "position": 0}, "", id="waits-for-nothing"),
    ],
)
def test_the_expected_time_of_the_next_slot_is_shown(job: dict[str, Any], next_slot: str) -> None:
    row = _job_row(JOB | job, 1000.0)
    assert row[:3] == ("j", "ada", "2")
    assert row[-2:] == (next_slot, "room")


def test_shares_are_shown_in_percent() -> None:
    queue = {
        "name": "etl", "weight": 2.5, "guaranteed": 0.5, "maximum": 1, "share": 0.376, "slots": 3, "lacking": 4,
        "jobs_waiting": 1, "preempted": 7,
    }  # fmt: skip
    assert _queue_row(queue) == ("etl", "2.5", "50%", "100%", "38%", "3", "4", "1", "7")
