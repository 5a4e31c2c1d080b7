"""Tests with programs that are too large for every run.

`make test-export` fetches the programs and runs these tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import TestPki

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "programs"


def program(path: str) -> Path:
    """A file below ``build/programs``."""
    found = PROGRAMS / path
    if not found.exists():
        pytest.fail(f"{found} is missing: run `make test-export`, or scripts/get-programs first")
    return found


@pytest.fixture
def pki(tmp_path: Path) -> TestPki:
    """A PKI of this test's own."""
    return TestPki(tmp_path / "pki")
