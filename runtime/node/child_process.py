"""Child processes that neither outlive their parent nor leave orphans behind.

Each child gets its own session, so that its whole process group can be signalled. On Linux it also asks the kernel to
send it SIGKILL when its parent dies (prctl(2), PR_SET_PDEATHSIG): ``kill -9`` of a parent leaves nothing running.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sluice.runtime.masking import Masker
from sluice.runtime.node.masked_output import MaskedOutput
from sluice.runtime.node.priority import can_return, in_background, to_background, to_foreground
from sluice.runtime.sandbox import Box, Guard, Launch

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when ``parent`` (the parent's pid) dies. For use right after fork."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(127)  # the parent is gone already


def enter_namespace(fd: int) -> None:
    """Move this process, right after fork, into the namespace that ``fd`` refers to.

    Raises:
        OSError: the kernel refuses.
    """
    if _LIBC.setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def allow_many_files() -> int:
    """Raise this process's soft limit of open files to the hard limit and return it. A connection takes one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # a hard limit of "infinity" may exceed the system's own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _before_exec(
    parent: int,
    ignored: Sequence[signal.Signals],
    namespaces: Sequence[int],
    enter: Callable[[], None] | None,
) -> Callable[[], None]:
    def prepare() -> None:
        if enter is not None:
            enter()
        for namespace in namespaces:
            enter_namespace(namespace)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        die_with_parent(parent)

    return prepare


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. ``code`` is the exit code as Python reports it (negative: the number of a signal)."""

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-self.code).name}"
        return f"killed by signal {-self.code}"


class ChildProcess:
    """A running child process with its process group."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        box: Box | None = None,
        guard: Guard | None = None,
        output: MaskedOutput | None = None,
    ) -> None:
        self._process = process
        self._output = output
        self._box = box
        self.pid = process.pid
        self.excess = ""
        """The limit that the process was killed for exceeding; known once it has ended, otherwise empty."""
        self._guard = guard
        self._background = False
        self._guarding = asyncio.create_task(self._keep_within(guard)) if guard is not None else None

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
        stdin: int = asyncio.subprocess.DEVNULL,
        box: Box | None = None,
        guard: Guard | None = None,
        pass_fds: Sequence[int] = (),
        masker: Masker | None = None,
        background: bool = False,
    ) -> ChildProcess:
        """Start ``argv`` in its own session; nothing of the parent's environment is inherited.

        Args:
            argv: the command line.
            env: the complete environment of the process.
            cwd: its working directory; it must be visible in the box, if there is one.
            stdout: its standard output, as for :mod:`subprocess`.
            stderr: its standard error.
            stdin: its standard input.
            box: the sandbox of the process and its descendants; None: the process belongs to Sluice itself.
            guard: enforces resource limits on the process and its descendants, and is closed when the process has
                ended. A process that exceeds a limit is killed, see :attr:`excess`.
            pass_fds: further descriptors that the process inherits.
            masker: masks secrets in its output; None: nothing is masked.
            background: run it at idle priority until :meth:`to_foreground`. Children of a background process always
                start in the background.
        """
        enter = guard.enter if guard is not None else None
        output = MaskedOutput(masker) if masker is not None and masker.needed else None
        with contextlib.ExitStack() as stack:
            if output is not None:
                stack.callback(output.started)
                stdout, stderr = output.pipe_to(stdout), output.pipe_to(stderr)
            if guard is not None:
                closed = stack.enter_context(contextlib.ExitStack())
                closed.callback(guard.close)
            launch = stack.enter_context(box.launch(argv, env=env, cwd=cwd)) if box else Launch(tuple(argv), env)
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                env=dict(launch.env),
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=(*launch.pass_fds, *pass_fds),
                preexec_fn=_before_exec(os.getpid(), launch.ignored_signals, launch.namespaces, enter),
            )
            if guard is not None:
                closed.pop_all()
        child = cls(process, box, guard, output)
        if background or in_background():
            try:
                await child.to_background()
            except BaseException:  # the caller does not have the child yet, so end it here
                await asyncio.shield(child.stop(0))
                raise
        return child

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """The pipe to the child's standard input, if one was requested."""
        return self._process.stdin

    @property
    def running(self) -> bool:
        """Whether the child has not been reaped yet."""
        return self._process.returncode is None

    async def wait(self) -> Exit:
        """Wait until the child ends."""
        code = await self._process.wait()
        if self._guarding is not None:
            await asyncio.shield(self._guarding)
        if self._output is not None:
            await asyncio.to_thread(self._output.finish)
        return Exit(code if self._box is None else self._box.exit_code(code))

    def excess_so_far(self) -> str:
        """The limit exceeded so far; known before the process has ended, since the kernel counts what it refuses."""
        return self.excess or (self._guard.excess_so_far() if self._guard is not None else "")

    async def _keep_within(self, guard: Guard) -> None:
        """Watch the process until it ends; kill it if it exceeds a limit."""
        ending = asyncio.create_task(self._process.wait())
        watching = asyncio.create_task(guard.exceeded(self.pid))
        try:
            await asyncio.wait((ending, watching), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                self.signal_group(signal.SIGKILL)
                guard.kill()
                await ending
            self.excess = guard.excess_so_far()
        finally:
            ending.cancel()
            watching.cancel()
            await asyncio.to_thread(guard.close)

    def watch(self, directories: Sequence[Path]) -> None:
        """Let the guard also watch these directories, which the process can fill from now on."""
        if self._guard is not None:
            self._guard.watch(directories)

    async def to_background(self) -> None:
        """Give the process and its descendants idle priority.

        Call this only after the process has started its program, since this process waits for that.
        """
        self._background = True
        with contextlib.suppress(OSError):  # it has ended
            if self._guard is not None:
                self._guard.lower_cpu_share()
        await asyncio.to_thread(to_background, self.pid)

    async def to_foreground(self) -> None:
        """Give the process and its descendants normal priority again.

        Control groups of descendants that have their own guard stay as they are: the holders of those guards restore
        them.

        Raises:
            OSError: the control group of the process is gone.
        """
        self.restore_cpu_share()
        await asyncio.to_thread(to_foreground, self.pid)
        self._background = False

    def restore_cpu_share(self) -> None:
        """Give the control group of the process its normal CPU share; raises as :meth:`to_foreground`."""
        if self._guard is not None:
            self._guard.restore_cpu_share()

    def signal_group(self, number: signal.Signals) -> None:
        """Send signal ``number`` to the child and everything that it started in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def stop(self, grace_seconds: float) -> Exit:
        """Send SIGTERM to the group, then SIGKILL after ``grace_seconds``, or at once when this call is cancelled."""
        try:
            if self.running:
                if self._background and can_return():  # ending takes processor time, too
                    with contextlib.suppress(OSError):
                        await self.to_foreground()
                self.signal_group(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_seconds):
                        await self._process.wait()
        finally:  # also when cancelled; and a box that is still being set up ignores SIGTERM
            self.signal_group(signal.SIGKILL)
        return await self.wait()
