"""The tests of a box again, as a user without rights: boxes then are in user namespaces.

As root they would otherwise only be seen with a uid for each job. The Python and the tree of these tests may be in
directories that are root's alone, so an outer mount namespace shows them to everybody.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.sandbox.mounts import Mount, in_order, parents
from sluice.runtime.sandbox.system_view import python_paths
from sluice.runtime.sandbox.trial import programs

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
NOBODY = 65534
FILES = ("test_box.py", "test_prepare.py", "test_end_of_box.py", "test_hostile.py", "test_limits.py")
BECOME = """
import os, sys
os.setgroups([])
os.setresgid({0}, {0}, {0})
os.setresuid({0}, {0}, {0})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def _as_nobody() -> Iterator[str]:
    """The command before a Python program that runs it without rights; nothing if we have none ourselves."""
    if os.geteuid() != 0:
        yield sys.executable
        return
    shown = in_order(Mount.read_only(path) for path in (*python_paths(), ROOT))
    closed = [path for path in parents(shown) if not path.stat().st_mode & 0o001]
    yield from (next(programs(IsolationConfig())), "--dev-bind", "/", "/")
    for path in closed:
        yield from ("--perms", "0755", "--tmpfs", str(path))
    hidden = [mount for mount in shown if any(mount.path.is_relative_to(path) for path in closed)]
    for path in parents(hidden):
        if any(path.is_relative_to(each) and path not in closed for each in closed):
            yield from ("--perms", "0755", "--dir", str(path))
    for mount in hidden:
        yield from mount.options(0)
    yield from ("--", sys.executable, "-c", BECOME.format(NOBODY))


async def test_boxes_hold_for_an_ordinary_user(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    if os.geteuid() == 0:
        for path in (tmp_path, temporary):
            os.chown(path, NOBODY, NOBODY)
    command = (*_as_nobody(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    process = await asyncio.create_subprocess_exec(
        *command,
        *(str(HERE / name) for name in FILES),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(temporary), "HOME": str(temporary)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()

    assert process.returncode == 0, told.decode()[-4000:]
    assert b"passed" in told
