"""Directories that a box which has waited gets when its job comes: as root, and with the job's own uid on disk.

The box has a uid of its own (it was made before its job was known), and the job's directories belong to the job's uid.
An idmapped mount (mount_setattr(2), Linux 5.12) shows the one as the other, in both directions; everybody else's files
stay as they are. It is made outside and moved into the box's mount namespace, onto directories that are there for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from sluice.runtime.sandbox.errors import SandboxRefused

MOUNTER = Path(__file__).with_name("mounter.py")
MOUNT_SECONDS = 10.0
MAX_ID = (1 << 32) - 1
"""No uid; the last is one less."""


def swapped(one: int, other: int) -> str:
    """The map of a user namespace (user_namespaces(7)) in which two ids are exchanged and all others stay."""
    low, high = sorted((one, other))
    extents = (
        (0, 0, low),
        (low, high, 1),
        (low + 1, low + 1, high - low - 1),
        (high, low, 1),
        (high + 1, high + 1, MAX_ID - high - 1),
    )
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents if count)


def mount_later(pid: int, directories: Sequence[Path], uids: tuple[int, int]) -> None:
    """Show ``directories`` in the box that ``pid`` was started with, at the same paths; blocks for some 50 ms.

    Args:
        pid: of the process that was started for the box; no code of a job may have run in the box.
        directories: no links; what is at these paths in the box is hidden by them.
        uids: of the job, to whom the directories belong, and of the box.

    Raises:
        SandboxRefused: this kernel or file system cannot do it.
    """
    if directories:
        _run(_inside(pid), directories, uids)


def try_mounts(directories: Sequence[Path], uids: tuple[int, int]) -> None:
    """Find out whether :func:`mount_later` could show ``directories``; raises ``SandboxRefused`` if not."""
    _run(0, directories, uids)


def _run(pid: int, directories: Sequence[Path], uids: tuple[int, int]) -> None:
    orders = msgspec.json.encode([pid, swapped(*uids), [str(each) for each in directories]])
    try:
        done = subprocess.run(
            (sys.executable, "-I", "-S", str(MOUNTER)),
            input=orders,
            env={},
            cwd="/",
            capture_output=True,
            timeout=MOUNT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxRefused(f"directories cannot be mounted later: {error}") from error
    if done.returncode != 0:
        why = done.stderr[-400:].decode(errors="replace").strip()
        raise SandboxRefused(f"directories cannot be mounted later: {why or done.returncode}")


def _inside(pid: int) -> int:
    """A process below ``pid`` that is in the box's mount namespace."""
    own = Path("/proc/self/ns/mnt").readlink()
    try:
        for each in psutil.Process(pid).children(recursive=True):
            if Path(f"/proc/{each.pid}/ns/mnt").readlink() != own:
                return each.pid
    except (psutil.Error, OSError) as error:
        raise SandboxRefused(f"the box has ended: {error}") from error
    raise SandboxRefused("there is no process in the box")
