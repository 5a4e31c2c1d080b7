"""Runs a program as an unprivileged user if the tests run as root.

The Python installation and the source tree may be in directories that only root can enter. An outer mount namespace
makes them accessible to all users.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.sandbox.bwrap import mounted
from sluice.runtime.sandbox.mounts import Mount, in_order
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
    """Return the command prefix that runs a Python program as an unprivileged user; plain Python if not root."""
    if os.geteuid() != 0:
        return (sys.executable,)
    return (*_open_namespace(), sys.executable, "-c", BECOME.format(NOBODY))


def python_of_root() -> tuple[str, ...]:
    """Like :func:`python_of_nobody` but as root. Python is in directories that all users can enter, as usual."""
    return (*_open_namespace(), sys.executable)


def _open_namespace() -> tuple[str, ...]:
    shown = in_order(Mount.read_only(path) for path in (*python_paths(), ROOT))
    tops = {path for mount in shown for path in mount.path.parents if not path.stat().st_mode & 0o001}
    closed = [path for path in sorted(tops) if tops.isdisjoint(path.parents)]
    hidden = [mount for mount in shown if any(mount.path.is_relative_to(path) for path in closed)]
    options = mounted([*map(Mount.empty, closed), *hidden], 1 << 20)
    return (next(programs(IsolationConfig())), "--dev-bind", "/", "/", *options, "--")
