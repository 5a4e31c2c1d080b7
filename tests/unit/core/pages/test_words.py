"""How values are worded on a page."""

from __future__ import annotations

import pytest

from sluice.core.pages import formatting as words

HOUR = 3600.0


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (850, "850 ms"),
        (8_120, "8.1 s"),
        (59_940, "59.9 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (3_600_000, "1 h"),
        (7_500_000, "2 h 5 min"),
        (86_400_000, "1 d"),
        (274_000_000, "3 d 4 h"),
    ],
)
def test_durations_are_shown_in_words(milliseconds: float, text: str) -> None:
    assert words.duration(milliseconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 B"), (999, "999 B"), (1_400_000, "1.4 MB"), (5e15, "5000.0 TB")])
def test_sizes_are_shown_in_words(number: float, text: str) -> None:
    assert words.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(100, "just now"), (88, "12 s ago"), (40, "1 min ago"), (112.5, "in 12 s"), (-3500, "1 h ago")],
)
def test_relative_times_are_shown_in_words(seconds: float, text: str) -> None:
    assert words.ago(seconds, 100) == text


def test_times_are_utc() -> None:
    assert words.moment(0) == "1970-01-01 00:00:00"
    assert words.machine_moment(1.9) == "1970-01-01T00:00:01Z"


@pytest.mark.parametrize(
    ("identity", "path", "short"),
    [
        ("spiffe://td/taskmanager/tm-1", "taskmanager/tm-1", "taskmanager/tm-1"),
        (f"spiffe://td/job/{'ab' * 16}/executor/3", f"job/{'ab' * 16}/executor/3", "job/abababab/executor/3"),
        ("no identity", "no identity", "no identity"),
        ("", "", ""),
    ],
)
def test_identities_are_shown_as_path_and_short_form(identity: str, path: str, short: str) -> None:
    assert words.identity_path(identity) == path
    assert words.short_identity(identity) == short


@pytest.mark.parametrize(
    ("age", "tone", "left"),
    [
        (0, "ok", "1 d left"),
        (12, "ok", "12 h left"),
        (15, "warn", "9 h left"),
        (22, "bad", "2 h left"),
        (24, "bad", "expired"),
    ],
)
def test_the_remaining_lifetime_of_a_certificate_has_a_text_and_a_tone(age: float, tone: str, left: str) -> None:
    assert words.expiry_tone(0, 24 * HOUR, age * HOUR) == tone
    assert words.left(24 * HOUR, age * HOUR) == left


def test_an_unknown_state_has_a_neutral_tone() -> None:
    assert words.state_tone("SOMETHING_NEW") == "idle"
    assert words.state_tone("FAILED") == "bad"
