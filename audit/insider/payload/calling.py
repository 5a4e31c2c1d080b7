"""Attempts of one system call, and the meaning of the kernel's answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from fnmatch import fnmatchcase

from .attempt import Group, Run, Tried, reached, refused, untried
from .kernel import NoSuchCall
from .reading import error_of
from .world import World

ESCAPE = Group(
    "ESC",
    severity="high",
    cwe=(250, 693),
    expected="the kernel or the seccomp filter refuses the call",
    remedy='run jobs with [isolation] level = "sandbox": no capability, no new privileges, a seccomp filter',
)
_ALLOWED_BUT_WRONG = frozenset({errno.EINVAL, errno.ENOENT, errno.EFAULT, errno.EBADF, errno.EBUSY, errno.ENOEXEC,
                                errno.ENOTDIR, errno.ENOTBLK, errno.EOPNOTSUPP, errno.ENODEV})  # fmt: skip
MAX_PATHS = 12
ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT})


def calling(what: str, act: Callable[[], object], seen: str = "the kernel did it") -> Run:
    """An attempt that succeeds when ``act`` does."""

    def run(_: World) -> Tried:
        try:
            act()
        except NoSuchCall as error:
            return untried(str(error))
        except OSError as error:
            if error.errno in ABSENT:
                return untried(f"this kernel has no such thing: {error_of(error)}")
            return refused(what, error_of(error))
        return reached(what, seen)

    return run


def asking(what: str, act: Callable[[], object]) -> Run:
    """An attempt whose call is wrong on purpose: any error but a refusal means that the right call would be done."""

    def run(_: World) -> Tried:
        try:
            act()
        except NoSuchCall as error:
            return untried(str(error))
        except OSError as error:
            if error.errno in _ALLOWED_BUT_WRONG:
                return reached(what, f"not forbidden, only wrong on purpose: {error_of(error)}")
            return refused(what, error_of(error))
        return reached(what, "the kernel did it")

    return run


FAMILIES: list[tuple[int, int, int]] = []
"""Families, kinds and protocols of sockets that attempts open; the audit says which ones the kernel supports."""
FAMILY = "socket family"
KERNEL_PATHS: list[str] = []
"""Paths that attempts open; the audit says which ones exist outside."""
KERNEL_PATH = "kernel path"


def opening(flags: int, *paths: str) -> Run:
    """An attempt to open one of these without reading or writing; a ``*`` stands for names in a directory."""
    KERNEL_PATHS.extend(paths)

    def run(world: World) -> Tried:
        known = [each.place for each in world.targets if each.kind == KERNEL_PATH]
        there = [path for path in known if any(fnmatchcase(path, pattern) for pattern in paths)]
        if world.home and not there:
            return untried(f"none of {', '.join(paths)} exists on this machine")
        errors: dict[str, str] = {}
        for path in there[:MAX_PATHS] or [each for each in paths if "*" not in each]:
            try:
                os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
            except OSError as error:
                errors[path] = error_of(error)
            else:
                return reached(f"opened {path}", "opened, neither read nor written")
        if not there and set(errors.values()) == {"ENOENT"}:
            return untried(f"none of {', '.join(paths)} is in sight, and whether one exists outside is not known")
        return refused(f"opened {', '.join(errors)}", ", ".join(f"{path}: {seen}" for path, seen in errors.items()))

    return run
