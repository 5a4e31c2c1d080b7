"""Reads a few bytes of forbidden files, and reports only their kind and number."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from .attempt import Tried, reached, refused, untried
from .world import Target, World

FEW_BYTES = 64
ANOTHER = "another directory is there"
MAX_NAMED = 4
"""Most targets that are named in a report."""


def kind_of(data: bytes) -> str:
    """The kind of some bytes."""
    if data.startswith(b"-----BEGIN"):
        return "PEM, " + data.split(b"-----")[1].removeprefix(b"BEGIN ").decode("ascii", "replace").lower()
    if data.startswith((b"{", b"[")):
        return "JSON or TOML"
    return "text" if data.isascii() else "binary data"


def read_some(path: Path) -> str:
    """Read a few bytes of ``path`` without following a final link or blocking; describes them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, FEW_BYTES)
    finally:
        os.close(descriptor)
    return f"read {len(data)} of {size} bytes: {kind_of(data)}"


def list_some(path: Path) -> str:
    """List a directory; how many entries it has."""
    return f"listed {len(os.listdir(path))} entries"  # noqa: PTH208  a descriptor's error, not a walk


def error_of(error: OSError) -> str:
    """An error in one word, as the kernel names it."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def names(targets: Sequence[Target]) -> str:
    """Targets for people."""
    more = f" and {len(targets) - MAX_NAMED} more" if len(targets) > MAX_NAMED else ""
    return ", ".join(str(each) for each in targets[:MAX_NAMED]) + more


def read_any(world: World, *kinds: str) -> Tried:
    """Try to read each target of these kinds; one that can be read is enough."""
    targets = world.of(*kinds)
    if not targets:
        return untried(f"no {' or '.join(kinds)} is known from outside, and none can be found from inside")
    errors: dict[str, int] = {}
    for target in targets:
        try:
            status = target.path.stat()
            directory = stat.S_ISDIR(status.st_mode)
            if directory and target.mark not in {"", f"{status.st_dev}:{status.st_ino}"}:
                errors[ANOTHER] = errors.get(ANOTHER, 0) + 1
                continue
            seen = list_some(target.path) if directory else read_some(target.path)
        except OSError as error:
            errors[error_of(error)] = errors.get(error_of(error), 0) + 1
        else:
            return reached(f"opened {target}", seen)
    return refused(f"opened {names(targets)}", ", ".join(f"{name} ({count})" for name, count in errors.items()))
