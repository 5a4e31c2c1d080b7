"""Settings of all tests: the place of temporary files, and the order of the tests.

`make test` distributes whole files to a few processes (``--dist loadfile``). Files that take long come first; at the
end they would leave all processes but one idle. Files that share a cluster go to one process, which starts it once.
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

# Deterministic examples without deadlines: a busy machine fails no test. `--hypothesis-profile=default` tries others.
settings.load_profile("ci")

TESTS = Path(__file__).parent
INTEGRATION = TESTS / "integration"
LONG = (*(INTEGRATION / name for name in ("cluster", "spark", "runtime", "pki", "shuffle", "audit")), INTEGRATION)
SMALL = (TESTS / "unit", TESTS / "compat", INTEGRATION)
"""Folders whose temporary files fit into memory: all folders of `make test` (``testpaths``)."""
ONE_CLUSTER = "tests/integration/cluster/"
MEMORY = Path("/dev/shm")  # noqa: S108  each run creates its own directory there
NEEDED_BYTES = 6 << 30


class _Spreading(LoadFileScheduling):  # type: ignore[misc]  # has no types
    """Distributes whole files, and all files of the shared cluster together."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_CLUSTER if nodeid.startswith(ONE_CLUSTER) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # some runs go without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Return the scheduler for ``--dist loadfile``."""
    return _Spreading(config, log) if config.getvalue("dist") == "loadfile" else None


@functools.cache
def _rank(path: Path) -> int:
    return next((rank for rank, folder in enumerate(LONG) if path.is_relative_to(folder)), len(LONG))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long folders first and unit tests last. Mark integration tests with a fixture ``cluster`` as ``cluster``."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()) and item.path.is_relative_to(INTEGRATION):
            item.add_marker(pytest.mark.cluster)
    items.sort(key=lambda item: _rank(item.path))


def pytest_configure(config: pytest.Config) -> None:
    """Give this run and all of its processes their own temporary directory. Pytest's own directories stay beside it.

    Its path is short, because homes with long paths put their sockets there. It is in memory if there is room: Sluice
    flushes everything to disk that must survive a crash, thousands of times in these tests. ``TMPDIR`` overrides this.
    """
    os.environ.setdefault("SLUICE__SPARK__MAKE_CLASS_ARCHIVE", "false")  # test clusters do not live long enough for it
    if hasattr(config, "workerinput"):  # a worker of xdist uses the directory of its run
        return
    chosen = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    small = all(any(path.is_relative_to(folder) for folder in SMALL) for path in chosen)
    in_memory = small and "TMPDIR" not in os.environ and _is_memory_to_spare()
    base = str(MEMORY) if in_memory else tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", base)
    directory = Path(tempfile.mkdtemp(prefix="sl", dir=base))
    directory.chmod(0o1777)  # like /tmp, because some tests run programs as other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def _is_memory_to_spare() -> bool:
    """Whether ``/dev/shm`` has room for the files of a run and allows programs to run from it."""
    try:
        room, meminfo = os.statvfs(MEMORY), Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return False
    available = next(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    usable = os.access(MEMORY, os.W_OK) and not room.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return usable and min(available, room.f_bavail * room.f_frsize) >= NEEDED_BYTES
