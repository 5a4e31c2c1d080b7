"""The order of the tests, what takes long first, and a temporary directory that ends with them.

`make test` gives whole files to two processes (``-n 2 --dist loadfile``); long files at the end would leave one of them
idle.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONG = (TESTS / "integration" / "cluster", TESTS / "integration" / "spark", TESTS / "integration" / "pipelines")


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, folder in enumerate(LONG) if item.path.is_relative_to(folder)), len(LONG))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long folders first, otherwise as collected."""
    items.sort(key=_rank)


def pytest_configure(config: pytest.Config) -> None:
    """Give this run, with all processes that it starts, a temporary directory of its own: homes with long paths have
    their sockets there. Its path is short for these; pytest's own directories stay where they are."""
    if hasattr(config, "workerinput"):  # a worker of xdist has the directory of its run
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="sl"))
    directory.chmod(0o1777)  # as /tmp: some tests run programs as other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
