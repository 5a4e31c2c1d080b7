"""What all tests have in common: where their temporary files are, and the order in which they run.

`make test` gives whole files to a few processes (``--dist loadfile``); long files at the end would leave all but one of
them idle, so they come first. Files that share a cluster go to one process, which starts it once.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer  # type: ignore[import-untyped]  # has no types
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # has no types

# The same examples each time, and none fails because the machine is busy; `--hypothesis-profile=default` tries others.
settings.load_profile("ci")

TESTS = Path(__file__).parent
INTEGRATION = TESTS / "integration"
LONG = (*(INTEGRATION / name for name in ("cluster", "spark", "runtime", "pki", "shuffle", "audit")), INTEGRATION)
SMALL = (TESTS / "unit", TESTS / "compat", INTEGRATION)
"""Folders whose tests write little enough for memory: all those of `make test` (``testpaths``)."""
ONE_CLUSTER = "tests/integration/cluster/"
MEMORY = Path("/dev/shm")  # noqa: S108  a directory of the run's own is made in it
NEEDED_BYTES = 6 << 30


class _Spreading(LoadFileScheduling):  # type: ignore[misc]  # has no types
    """Whole files, and all those of one cluster together."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_CLUSTER if nodeid.startswith(ONE_CLUSTER) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # some runs go without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """For ``--dist loadfile``."""
    return _Spreading(config, log) if config.getvalue("dist") == "loadfile" else None


@functools.cache
def _rank(path: Path) -> int:
    return next((rank for rank, folder in enumerate(LONG) if path.is_relative_to(folder)), len(LONG))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long folders first and units last; an integration test with a fixture ``cluster`` is marked so."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()) and item.path.is_relative_to(INTEGRATION):
            item.add_marker(pytest.mark.cluster)
    items.sort(key=lambda item: _rank(item.path))


def pytest_configure(config: pytest.Config) -> None:
    """Give this run, with all processes that it starts, a temporary directory of its own: homes with long paths have
    their sockets there. Its path is short for these; pytest's own directories stay beside it.

    It is in memory where there is room: the product writes through to the disk whatever must survive a crash, and that
    thousands of times in these tests. ``TMPDIR`` decides otherwise.
    """
    os.environ.setdefault("SLUICE__SPARK__MAKE_CLASS_ARCHIVE", "false")  # clusters of tests do not live that long
    if hasattr(config, "workerinput"):  # a worker of xdist has the directory of its run
        return
    chosen = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    small = all(any(path.is_relative_to(folder) for folder in SMALL) for path in chosen)
    in_memory = small and "TMPDIR" not in os.environ and _is_memory_to_spare()
    base = str(MEMORY) if in_memory else tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", base)
    directory = Path(tempfile.mkdtemp(prefix="sl", dir=base))
    directory.chmod(0o1777)  # as /tmp: some tests run programs as other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def _is_memory_to_spare() -> bool:
    """Whether ``/dev/shm`` can take the files of a run, and programs may be run from it."""
    try:
        room, meminfo = os.statvfs(MEMORY), Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return False
    available = next(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    usable = os.access(MEMORY, os.W_OK) and not room.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return usable and min(available, room.f_bavail * room.f_frsize) >= NEEDED_BYTES
