"""Running a program as a user without rights, where the tests run as root.

The Python and the tree of these tests may be in directories that are root's alone. An outer mount namespace shows them
to everybody.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.sandbox.mounts import Mount, in_order, parents
from sluice.runtime.sandbox.system_view import python_paths
from sluice.runtime.sandbox.trial import programs

ROOT = Path(__file__).parents[1]
NOBODY = 65534
BECOME = """
import os, sys
os.setgroups([])
os.setresgid({0}, {0}, {0})
os.setresuid({0}, {0}, {0})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def python_of_nobody() -> tuple[str, ...]:
    """The command before the arguments of a Python program that runs it without rights; else plain Python."""
    if os.geteuid() != 0:
        return (sys.executable,)
    shown = in_order(Mount.read_only(path) for path in (*python_paths(), ROOT))
    closed = [path for path in parents(shown) if not path.stat().st_mode & 0o001]
    command = [next(programs(IsolationConfig())), "--dev-bind", "/", "/"]
    for path in closed:
        command += ["--perms", "0755", "--tmpfs", str(path)]
    hidden = [mount for mount in shown if any(mount.path.is_relative_to(path) for path in closed)]
    for path in parents(hidden):
        if any(path.is_relative_to(each) and path not in closed for each in closed):
            command += ["--perms", "0755", "--dir", str(path)]
    for mount in hidden:
        command += mount.options(0)
    return (*command, "--", sys.executable, "-c", BECOME.format(NOBODY))
