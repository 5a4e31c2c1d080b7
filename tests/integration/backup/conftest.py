"""A home that tests can back up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.backup.lived_in import LivedIn


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> LivedIn:
    """A home that is created once per session; each test gets a copy."""
    return LivedIn(tmp_path_factory.mktemp("lived-in"))


@pytest.fixture
def lived_in(first: LivedIn, tmp_path: Path) -> LivedIn:
    """A copy of the home for this test alone."""
    return first.copied(tmp_path)
