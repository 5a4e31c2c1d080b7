"""Attempts that are one system call, and what the kernel's answer to it means."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

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
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT})


def calling(what: str, act: Callable[[], object], seen: str = "the kernel did it") -> Run:
    """An attempt that succeeds when ``act`` does."""

    def run(_: World) -> Tried:
        try:
            act()
        except NoSuchCall as error:
            return untried(str(error))
        except OSError as error:
            if error.errno in _ABSENT:
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


def opening(flags: int, *paths: str) -> Run:
    """An attempt to open one of these without reading or writing."""

    def run(_: World) -> Tried:
        errors: dict[str, str] = {}
        for path in paths:
            try:
                os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
            except OSError as error:
                errors[path] = error_of(error)
            else:
                return reached(f"opened {path}", "opened, neither read nor written")
        return refused(f"opened {', '.join(paths)}", ", ".join(f"{p}: {e}" for p, e in errors.items()))

    return run
