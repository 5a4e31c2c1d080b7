"""The instructions for a box's entry program (:mod:`sluice.runtime.sandbox.entry`), encoded as bytes."""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.limits import Limits

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class EntryInstructions:
    """The restrictions that the entry program applies and the program that it executes. ``env`` may contain secrets."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    limits: Limits
    uid: int | None = None
    parent: int | None = None
    filter_fd: int | None = None
    """Descriptor of the seccomp filter, if the entry program must install it."""
    network: tuple[int, int] | None = None
    """Descriptors of the private network's seccomp filter and of the socket for sending its listener."""
    read: tuple[str, ...] = ()
    """For Landlock: paths that may be read and executed."""
    write: tuple[str, ...] = ()
    """For Landlock: paths with full access."""
    shared: tuple[str, ...] = ()
    """For Landlock: paths with full access except for creating sockets."""

    def encoded(self) -> bytes:
        """NUL-separated ``key=value`` records.

        Raises:
            SandboxRefused: an argument or a variable contains a NUL character.
        """
        records = [f"{key}={value}" for key, value in self._records()]
        if any("\0" in record for record in records):
            raise SandboxRefused("an argument or an environment variable of the job contains a NUL character")
        return os.fsencode("\0".join(records))

    def _records(self) -> Iterator[tuple[str, str]]:
        if self.uid is not None:
            yield "uid", str(self.uid)
        if self.parent is not None:
            yield "parent", str(self.parent)
        for number, limit in rlimits(self.limits, shared=self.uid is not None).items():
            yield "rlimit", f"{number}:{limit}"
        yield from (("read", path) for path in self.read)
        yield from (("write", path) for path in self.write)
        yield from (("shared", path) for path in self.shared)
        if self.filter_fd is not None:
            yield "filter", str(self.filter_fd)
        if self.network is not None:
            yield "network", f"{self.network[0]}:{self.network[1]}"
        yield "cwd", str(self.cwd)
        for name, value in self.env.items():
            yield "env", f"{name}={value}"
        for argument in self.argv:
            yield "arg", argument


BOXES_OF_A_JOB = 16
"""How many boxes of one job, on one machine and with one uid, can each use their full number of processes."""


def rlimits(limits: Limits, *, shared: bool) -> dict[int, int]:
    """The setrlimit(2) limits of a process, by resource. Core dumps are always disabled.

    Args:
        shared: whether the job's boxes share one uid, so that the kernel counts their processes together. The kernel's
            limit is then only a last resort: a control group or the watcher enforces the limit of the box.
    """
    wanted = {
        resource.RLIMIT_NPROC: limits.processes * (BOXES_OF_A_JOB if shared else 1),
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.disk_mb * MIB,
    }
    return {resource.RLIMIT_CORE: 0, **{number: value for number, value in wanted.items() if value > 0}}


ENTRY = Path(__file__).with_name("entry.py")
"""The entry program."""


@functools.cache
def compiled_entry() -> bytes:
    """The entry program as a ``.pyc`` of the running Python, because compiling it for each box takes milliseconds."""
    code = compile(ENTRY.read_bytes(), ENTRY.name, "exec", dont_inherit=True, optimize=2)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
