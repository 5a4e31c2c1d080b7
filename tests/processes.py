"""Reads the process table. Processes may end, or be zombies, at any moment in between."""

from __future__ import annotations

import contextlib

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Return the arguments of a process; those of one that has ended are empty."""
    with contextlib.suppress(psutil.Error):  # a zombie has none either
        return process.cmdline()
    return []


def descendants(pid: int) -> list[psutil.Process]:
    """Return the running descendants of a process, without zombies; none of a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [each for each in psutil.Process(pid).children(recursive=True) if runs(each)]
    return []


def runs(process: psutil.Process) -> bool:
    """Return whether a process still runs. A zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def listening_ports(process: psutil.Process) -> set[int]:
    """Return the TCP ports on which a process listens; none of a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    return set()
