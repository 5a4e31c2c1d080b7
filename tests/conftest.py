"""How the tests are spread over processes (``pytest -n 2 --dist loadgroup``, as ``make test`` calls it).

The tests of one file stay together, and so do those of a folder that shares something expensive: a running cluster,
a running Spark job. Those come first, since they take longest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHARED = (TESTS / "integration" / "cluster", TESTS / "integration" / "spark")


def _group(path: Path) -> Path:
    return next((folder for folder in SHARED if path.is_relative_to(folder)), path)


@pytest.hookimpl(tryfirst=True)  # the names must be there when the items are handed out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the group of each test; expensive groups first, otherwise in the order of the folders."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(str(_group(item.path).relative_to(TESTS))))
    items.sort(key=lambda item: SHARED.index(group) if (group := _group(item.path)) in SHARED else len(SHARED))
