"""A certificate order that is killed at any moment.

A complete certificate is in use afterwards, and the next order succeeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash_injection import crash_reports

SCRIPT = Path(__file__).with_name("acme_crash.py")


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One report per step at which an order was killed; the last order was not killed."""
    return crash_reports(SCRIPT, tmp_path_factory.mktemp("crash"))


def test_the_old_or_the_new_certificate_is_in_use_whenever_an_order_is_killed(crashes: list[dict[str, Any]]) -> None:
    assert [each["killed"] for each in crashes] == [True] * (len(crashes) - 1) + [False]
    assert len(crashes) > 8
    in_use = [each["in_use"] for each in crashes]
    assert set(in_use) == {"old", "new"}
    assert in_use == sorted(in_use, reverse=True)


def test_no_key_is_lost_or_readable_by_others_when_an_order_is_killed(crashes: list[dict[str, Any]]) -> None:
    for each in crashes:
        assert each["same_account"], each
        assert each["open_to_others"] == ["0"], each


def test_the_order_after_a_killed_one_succeeds_and_cleans_up(crashes: list[dict[str, Any]]) -> None:
    for each in crashes:
        assert (each["after"], each["kept"], each["pending"]) == ("next", 2, False), each
