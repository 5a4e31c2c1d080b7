"""Detects the Landlock version of this kernel, which the entry program uses."""

from __future__ import annotations

import ctypes
import functools

_CREATE_RULESET = 444
_VERSION = 1


@functools.cache
def landlock_version() -> int:
    """The kernel's Landlock ABI version; 0: no Landlock. Version 6 (Linux 6.12) and later isolate abstract sockets."""
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))
