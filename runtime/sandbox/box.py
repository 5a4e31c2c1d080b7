"""Builds the command that starts one process of a job in a box."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.runtime.sandbox import bwrap
from sluice.runtime.sandbox.attachment import NetworkAttachment
from sluice.runtime.sandbox.entry_instructions import ENTRY, EntryInstructions, compiled_entry
from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.limits import Limits
from sluice.runtime.sandbox.mounts import Mount, MountKind
from sluice.runtime.sandbox.seccomp import filter_beside_network
from sluice.runtime.sandbox.system_view import content_of
from sluice.runtime.sandbox.view import View

_SIGNAL_EXIT_BASE = 128
_FATAL = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
        *(signal.SIGSYS, signal.SIGXFSZ, signal.SIGXCPU),
    }
)
"""Signals for which exit code 128+N means a death by signal N. A JVM exits with 143 on its own after SIGTERM."""


_OWN = ("/tmp", "/dev", "/proc")  # noqa: S108 - private to the box
"""Paths that a box may write in addition to its view, as far as file modes allow."""
_SHARED = ("/proc", *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")))
"""The same for a box without namespaces."""
_USERS = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
"""Files that a box with namespaces has its own version of. Without namespaces it reads the machine's."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command to start instead of the job's command, and its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    pass_fds: tuple[int, ...] = ()
    ignored_signals: tuple[signal.Signals, ...] = ()
    """Signals to ignore in the started process. The job's own program gets their default actions back."""
    namespaces: tuple[int, ...] = ()
    """Descriptors of namespaces that the new process enters before exec, in order."""


@dataclass(frozen=True, slots=True)
class IsolationSetup:
    """The isolation setup that all boxes of this process share."""

    python: str
    """The Python that runs the entry program."""
    bwrap: str = ""
    """Path of bubblewrap; empty: no namespaces."""
    mounts: tuple[Mount, ...] = ()
    """Mounts of the machine's programs and settings."""
    files: tuple[Path, ...] = ()
    """Small files of the machine that are copied into each box."""
    filter: bytes = b""
    """The seccomp filter."""


@dataclass(frozen=True, slots=True)
class Box:
    """One process of a job and its descendants. At level ``none``, ``isolation`` is None, and it is a plain process."""

    view: View
    limits: Limits
    isolation: IsolationSetup | None = None
    uid: int | None = None
    """The job's own uid; None: the uid of the process that starts the box."""
    mounts: tuple[Mount, ...] = ()
    network: NetworkAttachment | None = None
    """Attaches the box to the job's private network; None: the box uses the machine's network."""
    shared: frozenset[Path] = frozenset()
    """Writable mounts in which the box must not create sockets."""
    offline: bool = False
    """Whether the box has an empty network namespace, without any connection to others."""

    @contextlib.contextmanager
    def launch(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Iterator[Launch]:
        """Build the command that starts ``argv`` in the box; its descriptors are open within the context.

        The command line and environment of the outer process contain nothing from the job, because a job's
        ``LD_PRELOAD`` must not load code before the restrictions are in place.

        Raises:
            SandboxRefused: the box has a network but no namespaces, or an argument or variable contains a NUL.
        """
        if self.network is not None and (self.isolation is None or not self.isolation.bwrap):
            raise SandboxRefused("only a box with namespaces can have a private network")
        if self.isolation is None:
            yield Launch(tuple(argv), dict(env))
            return
        with contextlib.ExitStack() as stack:
            own = self.isolation.filter if self.network is None else filter_beside_network()
            fds = [_memory_file(stack, "filter", own)]
            writable = _paths((each for each in self.mounts if each.path not in self.shared), MountKind.WRITABLE)
            readable = _paths((*self.isolation.mounts, *self.mounts), MountKind.READ_ONLY)
            network = None
            if self.network is not None:
                program = _memory_file(stack, "network", self.network.filter)
                network = (program, stack.enter_context(self.network.channel()))
            if self.isolation.bwrap:
                # A Landlock rule for a directory also applies to everything below it.
                # Directories that are mounted below ``read_only_remapped`` later are shared as well. Until then they
                # are read-only.
                shared = (*self.shared, *self.view.read_only_remapped)
                above = [each for each in _OWN if any(path.is_relative_to(each) for path in shared)]
                instructions = EntryInstructions(
                    argv,
                    env,
                    cwd,
                    self.limits,
                    uid=self.uid,
                    network=network,
                    read=("/",),
                    write=(*(each for each in _OWN if each not in above), *writable),
                    shared=(*above, *map(str, shared)),
                )
            else:
                instructions = EntryInstructions(
                    argv,
                    env,
                    cwd,
                    self.limits,
                    uid=self.uid,
                    parent=os.getpid(),
                    filter_fd=fds[0],
                    read=(*_USERS, *map(str, self.isolation.files), *readable),
                    write=(*_SHARED, *writable),
                )
            fds.append(_memory_file(stack, "instructions", instructions.encoded()))
            if self.isolation.bwrap:
                command = self._bwrap_command(self.isolation, stack, fds)
            else:
                command = (self.isolation.python, "-I", "-S", str(ENTRY), str(fds[1]), self.view.job_id)
            fds += network or ()
            namespaces = self.network.namespaces if self.network is not None else ()
            yield Launch(command, {}, tuple(fds), (signal.SIGTERM,), namespaces)

    def _bwrap_command(self, isolation: IsolationSetup, stack: contextlib.ExitStack, fds: list[int]) -> tuple[str, ...]:
        filter_fd, instructions_fd = fds
        home = self.view.home or next(iter(self.view.writable), Path("/tmp"))  # noqa: S108 - private to the box
        uid = bwrap.INNER_UID if self.uid is None else self.uid
        files = []
        own = self.network.files if self.network is not None else {}
        copies = (bwrap.BoxFile(str(path), content_of(path)) for path in isolation.files if str(path) not in own)
        given = (bwrap.BoxFile(path, content) for path, content in own.items())
        secrets = bwrap.secret_files(self.view.secrets, self.uid)
        for file in (*bwrap.box_files(uid, home, compiled_entry()), *copies, *given, *secrets):
            fds.append(_memory_file(stack, "file", file.content))
            files.append((fds[-1], file))
        options = (
            *bwrap.namespace_options(self.uid),
            *(("--unshare-net",) if self.offline else ()),
            *bwrap.mount_options(isolation.mounts, self.mounts, files, tmp_mb=self.limits.tmp_mb),
            *("--seccomp", str(filter_fd), "--chdir", "/"),
        )
        fds.append(_memory_file(stack, "options", os.fsencode("".join(f"{option}\0" for option in options))))
        inner = (isolation.python, "-I", "-S", bwrap.ENTRY_PATH, str(instructions_fd), self.view.job_id)
        return (isolation.bwrap, "--args", str(fds[-1]), "--", *inner)

    def exit_code(self, code: int) -> int:
        """Convert the exit code of the started process to that of the job's program; negative: killed by a signal."""
        if self.isolation is not None and self.isolation.bwrap and code - _SIGNAL_EXIT_BASE in _FATAL:
            return _SIGNAL_EXIT_BASE - code
        return code


def _paths(mounts: Iterable[Mount], kind: MountKind) -> tuple[str, ...]:
    return tuple(str(mount.path) for mount in mounts if mount.kind is kind)


def _memory_file(stack: contextlib.ExitStack, name: str, content: bytes) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
