"""A home to back up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.backup.lived_in import LivedIn


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> LivedIn:
    """Made once; each test has a copy."""
    return LivedIn(tmp_path_factory.mktemp("lived-in"))


@pytest.fixture
def lived_in(first: LivedIn, tmp_path: Path) -> LivedIn:
    """A home of this test's own."""
    return first.copied(tmp_path)
