"""Finds the processes that hold a socket, and duplicates their descriptors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sluice.runtime.sandbox.network.sockets import kernel


def take(namespace: int | None, inodes: set[int], *, thorough: bool = False) -> Iterator[int]:
    """Yield a duplicate descriptor of each socket in ``inodes`` that a process holds.

    Args:
        namespace: the inode of the network namespace whose processes are searched; None: all processes.
        inodes: the inodes of the sockets; each is yielded at most once.
        thorough: search every thread, because threads may have separate descriptor tables; slower.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for process in processes(namespace):
        for thread in _threads(process) if thorough else (process,):
            for number in _descriptors(thread, wanted):
                with contextlib.suppress(OSError):
                    pidfd = kernel.open_thread(thread)
                    try:
                        yield kernel.fetch(pidfd, number)
                    finally:
                        os.close(pidfd)
                if not wanted:
                    return


def processes(namespace: int | None) -> Iterator[int]:
    """Yield the processes in a network namespace; None: all processes."""
    for entry in list(os.scandir("/proc")):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if namespace is None or Path(f"/proc/{entry.name}/ns/net").stat().st_ino == namespace:
                    yield int(entry.name)


def _threads(process: int) -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(f"/proc/{process}/task")]
    except OSError:
        return []


def _descriptors(thread: int, wanted: dict[str, int]) -> Iterator[int]:
    try:
        entries = list(os.scandir(f"/proc/{thread}/fd"))
    except OSError:
        return
    for entry in entries:
        try:
            target = os.readlink(entry.path)  # noqa: PTH115 - faster, and there may be a hundred thousand of them
        except OSError:
            continue
        if wanted.pop(target, None) is not None:
            yield int(entry.name)
            if not wanted:
                return
