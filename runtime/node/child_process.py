"""Child processes that never outlive their parent and never leave orphans behind.

Each child gets its own session (so that its whole group can be signalled) and, on Linux, asks the
kernel for SIGKILL when its parent dies (prctl(2), PR_SET_PDEATHSIG): ``kill -9`` of a parent
leaves nothing running.
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
    """Ask the kernel to kill this process when ``parent`` (its parent's pid) dies; for use right after fork."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(127)  # the parent is gone already


def enter_namespace(fd: int) -> None:
    """Let this process, right after fork, enter the namespace that ``fd`` names.

    Raises:
        OSError: it may not.
    """
    if _LIBC.setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def allow_many_files() -> int:
    """Raise this process's limit of open files as far as it may itself; returns the limit. One file a connection."""
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
    """How a process ended: ``code`` as Python reports it (negative: the signal that ended it)."""

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-self.code).name}"
        return f"killed by signal {-self.code}"


class ChildProcess:
    """A running child: wait for it, or end it and its whole process group."""

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
        """Which bound it has exceeded and therefore was killed; known when it has ended, empty otherwise."""
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
            cwd: its working directory; in a box it must be among what the box shows.
            stdout: where its output goes, as for :mod:`subprocess`.
            stderr: where its errors go.
            stdin: where its input comes from.
            box: what the process and all that it starts live in; None: a process of Sluice's own.
            guard: keeps the process and all that it starts within bounds, and is closed when the process has ended;
                what exceeds one is killed, see :attr:`excess`.
            pass_fds: descriptors that it inherits besides.
            masker: knows what must not get into its logs; None: nothing.
            background: it gets only the processor time that nobody else wants, until :meth:`to_foreground`; all that
                a process in the background starts does.
        """
        enter = guard.enter if guard is not None else None
        output = MaskedOutput(masker) if masker is not None and masker.needed else None
        with contextlib.ExitStack() as stack:
            if output is not None:
                stack.callback(output.started)
                stdout, stderr = output.in_front_of(stdout), output.in_front_of(stderr)
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
            except BaseException:  # nobody has it yet who could end it
                await asyncio.shield(child.stop(0))
                raise
        return child

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """The pipe to the child's standard input, when one was asked for."""
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
        """Which bound it has exceeded by now; known before it has ended, since the kernel counts what it refuses."""
        return self.excess or (self._guard.excess_so_far() if self._guard is not None else "")

    async def _keep_within(self, guard: Guard) -> None:
        """Watch the process until it has ended or exceeds a bound; then it is killed."""
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
        """It can fill these too, from now on."""
        if self._guard is not None:
            self._guard.watch(directories)

    async def to_background(self) -> None:
        """Let it and all that it starts have only the processor time that nobody else wants.

        Not before it runs its program: this process waits for that.
        """
        self._background = True
        with contextlib.suppress(OSError):  # it has ended
            if self._guard is not None:
                self._guard.give_way()
        await asyncio.to_thread(to_background, self.pid)

    async def to_foreground(self) -> None:
        """Give it and all that it has started their usual share of the processors.

        Control groups of what it has started with a guard are left: who has these guards opens them.

        Raises:
            OSError: its control group is gone.
        """
        self.take_share()
        await asyncio.to_thread(to_foreground, self.pid)
        self._background = False

    def take_share(self) -> None:
        """Give its control group its usual share; raises as :meth:`to_foreground`."""
        if self._guard is not None:
            self._guard.take_share()

    def signal_group(self, number: signal.Signals) -> None:
        """Send ``number`` to the child and everything it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def stop(self, grace_seconds: float) -> Exit:
        """SIGTERM the group, and SIGKILL what is left of it after ``grace_seconds``, or at once when cancelled."""
        try:
            if self.running:
                if self._background and can_return():  # to end takes time, too
                    with contextlib.suppress(OSError):
                        await self.to_foreground()
                self.signal_group(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_seconds):
                        await self._process.wait()
        finally:  # a box that is being made ignores SIGTERM, and who is cancelled does not come back for the rest
            self.signal_group(signal.SIGKILL)
        return await self.wait()
