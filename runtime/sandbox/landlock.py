"""Which Landlock this kernel has; the entry program uses it."""

from __future__ import annotations

import ctypes
import functools

_CREATE_RULESET = 444
_VERSION = 1


@functools.cache
def landlock_version() -> int:
    """The version of the kernel's Landlock; 0: it has none. Since 6 (Linux 6.12) it keeps abstract sockets apart."""
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))
