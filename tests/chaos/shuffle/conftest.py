"""Reports the results of a series of fault runs."""

from __future__ import annotations

import pytest

from tests.chaos.shuffle.report import Report

_REPORT = pytest.StashKey[Report]()


def pytest_configure(config: pytest.Config) -> None:
    """Create one report for the whole test session."""
    config.stash[_REPORT] = Report()


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Report:
    """Provides the report to which each run is added."""
    return pytestconfig.stash[_REPORT]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many runs had which outcome."""
    if lines := config.stash[_REPORT].lines():
        terminalreporter.section("fault runs")
        for line in lines:
            terminalreporter.write_line(line)
