"""The order of the tests: what takes long comes first.

`make test` gives whole files to two processes (``-n 2 --dist loadfile``); long files at the end would leave one of them
idle.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONG = (TESTS / "integration" / "cluster", TESTS / "integration" / "spark", TESTS / "integration" / "pipelines")


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, folder in enumerate(LONG) if item.path.is_relative_to(folder)), len(LONG))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long folders first, otherwise as collected."""
    items.sort(key=_rank)
