"""The report of a series of fault runs."""

from __future__ import annotations

import pytest

from tests.chaos.shuffle.report import Report

_REPORT = pytest.StashKey[Report]()


def pytest_configure(config: pytest.Config) -> None:
    """One report for the session."""
    config.stash[_REPORT] = Report()


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Report:
    """Where a run is noted."""
    return pytestconfig.stash[_REPORT]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many runs ended how."""
    if lines := config.stash[_REPORT].lines():
        terminalreporter.section("fault runs")
        for line in lines:
            terminalreporter.write_line(line)
