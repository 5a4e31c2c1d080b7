"""Mounts a job's directories into a box that was created before its job was known. Requires root.

Such a box has its own uid, while the job's directories belong to the job's uid. An idmapped mount (mount_setattr(2),
Linux 5.12) maps the two uids to each other, in both directions; the files of other users keep their uids. The mount is
created outside and moved into the box's mount namespace, onto directories prepared for it.
"""

from __future__ import annotations

import contextlib
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
"""Not a valid uid; the largest valid uid is one less."""


def swapped(one: int, other: int) -> str:
    """The id map of a user namespace (user_namespaces(7)) that swaps two ids and keeps all others."""
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
    """Mount ``directories`` at the same paths in the box of the process ``pid``; blocks for about 50 ms.

    Args:
        pid: the process that was started for the box. No code of a job may have run in the box yet.
        directories: must not be links. They hide what the box has at these paths.
        uids: the uid of the job, which owns the directories, and the uid of the box.

    Raises:
        SandboxRefused: this kernel or file system does not support it, or the box has ended.
    """
    if directories:
        _run(process_in_box(pid), directories, uids)


def try_mounts(directories: Sequence[Path], uids: tuple[int, int]) -> None:
    """Check whether :func:`mount_later` works for ``directories``.

    Raises:
        SandboxRefused: this kernel or file system does not support it.
    """
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
        raise SandboxRefused(f"cannot mount directories into a running box: {error}") from error
    if done.returncode != 0:
        why = done.stderr[-400:].decode(errors="replace").strip()
        raise SandboxRefused(f"cannot mount directories into a running box: {why or done.returncode}")


def process_in_box(pid: int) -> int:
    """A descendant of ``pid`` in the box's mount namespace."""
    own = Path("/proc/self/ns/mnt").readlink()
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.Error as error:
        raise SandboxRefused(f"the box has ended: {error}") from error
    for each in below:
        with contextlib.suppress(OSError):  # it has ended since it was listed; others may run
            if Path(f"/proc/{each.pid}/ns/mnt").readlink() != own:
                return each.pid
    raise SandboxRefused("there is no process in the box")
