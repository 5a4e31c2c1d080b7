"""Turns at the ledger: of all processes that sign for one home, only one at a time decides, signs and records.

A turn is a lock (flock(2)) on the ledger itself, which the kernel releases when the process ends. A process that is
stopped or hangs keeps it: then nobody can issue, and the error names the process. A waiting process holds the lock of
the ledger's directory, so that the previous one does not take the next turn again; others wait only briefly for that
lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Histogram

from sluice.core import REGISTRY, lock_within
from sluice.pki.errors import LedgerError

TURN_PATIENCE_SECONDS = 5.0
"""How long to wait for a turn; a requester waits at most 10 seconds for an answer."""
COURTESY_SECONDS = 0.05
"""How long to let another waiting process go first."""
IMPATIENCE_SECONDS = 0.05
"""How long to wait for a turn after a failed wait: other requests wait for the same thread."""
POLL_SECONDS = 0.001
LOCKS_FILE = Path("/proc/locks")

WAITED = Histogram(
    "sluice_ca_turn_wait_seconds",
    "How long the online authority waited for its turn at the ledger, which it shares with others of its home.",
    buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 10),
    registry=REGISTRY,
)


class Turns:
    """The turns of one open ledger; for one thread.

    Args:
        path: of the ledger.
        descriptor: of the same, open for as long as this is used.
        patience: how long to wait for a turn, in seconds.
    """

    def __init__(self, path: Path, descriptor: int, patience: float = TURN_PATIENCE_SECONDS) -> None:
        self._path = path
        self._descriptor = descriptor
        self._patience = patience
        self._given_up = False
        self._held = False

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Take the turn; yields False if an outer block has it already.

        Raises:
            LedgerError: another process keeps it.
        """
        if self._held:
            yield False
            return
        begun = time.monotonic()
        with _queue(self._path.parent):
            got = lock_within(
                self._descriptor, IMPATIENCE_SECONDS if self._given_up else self._patience, poll_seconds=POLL_SECONDS
            )
        WAITED.observe(time.monotonic() - begun)
        self._given_up = not got
        if not got:
            raise LedgerError(*_kept(self._path, self._descriptor))
        self._held = True
        try:
            yield True
        finally:
            self._held = False
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def ledger_turn(path: Path, patience: float = TURN_PATIENCE_SECONDS) -> Iterator[None]:
    """Keep every authority from issuing while its inputs change; does nothing without a ledger.

    Raises:
        LedgerError: an authority keeps the turn.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise LedgerError(f"cannot open {path}: {error.strerror or error}") from error
    try:
        with Turns(path, descriptor, patience).take():
            yield
    finally:
        os.close(descriptor)


def holder_of(descriptor: int, locks: str) -> int | None:
    """The process that has locked this file, by the kernel's table of locks (proc(5)); None: unknown."""
    info = os.fstat(descriptor)
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    for line in locks.splitlines():
        match line.split():
            case [_, "FLOCK", _, "WRITE", pid, found, *_] if found == place and pid.isdigit() and int(pid) > 0:
                return int(pid)
            case _:
                continue
    return None


@contextlib.contextmanager
def _queue(directory: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            lock_within(descriptor, COURTESY_SECONDS, poll_seconds=POLL_SECONDS)
        yield


def _kept(path: Path, descriptor: int) -> tuple[str, str]:
    try:
        pid = holder_of(descriptor, LOCKS_FILE.read_text(encoding="ascii", errors="replace"))
    except OSError:
        pid = None
    if pid is None:
        return f"another process keeps the turn at {path}", "find it with lslocks(8); if it is stopped or hangs, end it"
    return f"process {pid} keeps the turn at {path}", f"if it is stopped or hangs, end it: kill -9 {pid}"
