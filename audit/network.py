"""Examines listeners from inside another network namespace, as processes of a container see them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sluice.audit.errors import AuditError

_T = TypeVar("_T")
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def in_network_of(pid: int, look: Callable[[], _T]) -> _T:
    """Run ``look``, and the threads that it starts, in the network namespace of ``pid``.

    A namespace belongs to a thread, and new threads inherit it: the caller's is unchanged.

    Raises:
        AuditError: there is no such process, or its namespace may not be entered.
    """

    def enter_and_look() -> _T:
        try:
            descriptor = os.open(Path("/proc", str(pid), "ns", "net"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(pid, error.strerror or type(error).__name__) from error
        try:
            if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
                raise _refused(pid, os.strerror(ctypes.get_errno()))
        finally:
            os.close(descriptor)
        return look()

    with ThreadPoolExecutor(1, thread_name_prefix="network") as pool:
        return pool.submit(enter_and_look).result()


def _refused(pid: int, why: str) -> AuditError:
    return AuditError(f"the network of process {pid} cannot be entered: {why}", "run the audit as root, on that host")
