"""A home to back up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.backup.lived_in import LivedIn


@pytest.fixture
def lived_in(tmp_path: Path) -> LivedIn:
    """A home of this test's own."""
    return LivedIn(tmp_path)
