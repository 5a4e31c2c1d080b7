"""The report of the certificate inventory as text and JSON, and its command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import certifi
import pytest

from sluice.pipelines import cert_inventory as inventory
from sluice.pipelines.cert_inventory import Report, Section

REPORT = Report(
    as_of="2026-06-01T00:00:00+00:00",
    inputs=5,
    certificates=3,
    bad_inputs=2,
    duplicates=1,
    sections=[
        Section("by_key", "Key type and size", ("key", "certificates"), [("RSA 2048", 2), ("EC secp256r1", 1)], 2),
        Section("by_issuer", "Issuer organisation", ("issuer", "certificates"), [("中華電信", 2), ("é" * 60, 1)], 2),
        Section("bad", "Bad inputs", ("source", "block", "reason"), [("a.pem", 1, "r")] * 25, 40),
        Section("findings", "Findings", ("severity", "finding", "certificates", "meaning"), [], 0),
    ],
)


def test_text_report_has_one_total_per_line() -> None:
    lines = [line.split() for line in inventory.render_text(REPORT).splitlines()]
    for expected in (["inputs", "seen", "5"], ["certificates", "3"], ["bad", "inputs", "2"], ["duplicates", "1"]):
        assert lines.count(expected) == 1


def test_table_columns_are_aligned_for_any_script() -> None:
    """Chinese characters take two columns each; text that is too long is cut with an ellipsis."""
    (section,) = (section for section in REPORT.sections if section.name == "by_issuer")
    lines = inventory.render_table(section)[1:-1]
    assert {inventory.width(line) for line in lines} == {2 + inventory.CELL_WIDTH + 2 + len("certificates")}
    assert "é…" in lines[-1]


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    text = inventory.render_text(REPORT)
    assert text.count("a.pem") == inventory.LISTED_ROWS
    assert "… and 20 more" in text


def test_an_empty_table_has_its_header() -> None:
    assert inventory.render_table(REPORT.sections[-1])[1].split() == ["severity", "finding", "certificates", "meaning"]


def test_json_has_the_same_numbers() -> None:
    value = json.loads(inventory.render_json(REPORT))
    assert {name: value[name] for name in ("inputs", "certificates", "bad_inputs", "duplicates")} == {
        "inputs": 5,
        "certificates": 3,
        "bad_inputs": 2,
        "duplicates": 1,
    }
    assert value["by_key"] == [{"key": "RSA 2048", "certificates": 2}, {"key": "EC secp256r1", "certificates": 1}]
    assert len(value["bad"]) == 25
    assert value["not_listed"] == {"bad": 15}


def test_the_default_input_is_the_mozilla_bundle_at_the_current_time() -> None:
    before = datetime.now(UTC)
    options = inventory.arguments([])
    assert options.paths == [str(Path(certifi.where()).resolve()).encode()]
    assert before <= options.as_of <= datetime.now(UTC)
    assert (options.format, options.output) == ("table", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-31", datetime(2026, 12, 31, tzinfo=UTC)),
        ("2026-12-31T23:00:00Z", datetime(2026, 12, 31, 23, tzinfo=UTC)),
        ("2026-12-31T23:00:00+02:00", datetime(2026, 12, 31, 21, tzinfo=UTC)),
    ],
)
def test_dates_are_utc_unless_they_say_otherwise(text: str, expected: datetime) -> None:
    assert inventory.arguments(["--as-of", text]).as_of == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["--as-of", "yesterday"], "'yesterday' is not a date", id="no date"),
        pytest.param(["--as-of", "0001-01-01T00:00:00+01:00"], "is not a date", id="before time began"),
        pytest.param(["--format", "xml"], "invalid choice: 'xml'", id="no format"),
        pytest.param(["--input", "/nowhere/at/all"], "/nowhere/at/all: no such file or folder", id="no path"),
        pytest.param(["--inptu", "x"], "unrecognized arguments", id="unknown option"),
        pytest.param(["x.pem"], "unrecognized arguments", id="positional"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        inventory.arguments(argv)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_an_empty_folder_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        inventory.arguments(["--input", str(tmp_path)])
    assert "contain no files" in capsys.readouterr().err
