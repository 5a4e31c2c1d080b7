"""Runs one attempt safely for the others: in its own process, with a deadline and a bounded result."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import threading
import time

from .attempt import MAX_TEXT, Attempt, Outcome, Tried, refused, untried
from .world import World

MAX_ANSWER_BYTES = 8 * MAX_TEXT
_MISTAKES = frozenset({errno.EFAULT, errno.EBADF, errno.EINVAL, errno.ENOTTY, errno.ENOEXEC})
"""Errors for a wrong call, not a forbidden one."""
_REFUSING_SIGNALS = frozenset({signal.SIGSYS, signal.SIGKILL, signal.SIGXCPU, signal.SIGXFSZ})


def tried(attempt: Attempt, world: World) -> Tried:
    """Run ``attempt``; always returns a result."""
    result = _forked(attempt, world) if attempt.forked else _threaded(attempt, world)
    return result.bounded()


def _answer(attempt: Attempt, world: World) -> Tried:
    """The attempt's own answer. A kernel refuses with an error; any other exception is our mistake, not a pass."""
    try:
        return attempt.run(world)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        if error.errno in _MISTAKES:
            return untried(f"the attempt was made wrongly: {name}: {error}")
        return refused(f"tried to {attempt.what}", f"{name}: {error}")
    except MemoryError:
        return refused(f"tried to {attempt.what}", "MemoryError")
    except Exception as error:  # noqa: BLE001  the next attempts must run
        return untried(f"the attempt broke: {type(error).__name__}: {error}")


def _forked(attempt: Attempt, world: World) -> Tried:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            result = _answer(attempt, world).bounded()
            os.write(writer, json.dumps([result.outcome, result.done, result.seen]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text = _read(reader, time.monotonic() + attempt.seconds)
    os.close(reader)
    if text is None:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if text:
        with contextlib.suppress(ValueError, TypeError):
            outcome, done, seen = json.loads(text)
            return Tried(Outcome(outcome), str(done), str(seen))
    if text is None:
        return untried(f"it did not end within {attempt.seconds:g} s")
    return _died(attempt, status)


def _read(reader: int, deadline: float) -> bytes | None:
    """The output of the attempt until it ends; None when it takes too long, or writes too much."""
    text = b""
    while len(text) <= MAX_ANSWER_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return text or None
        piece = os.read(reader, MAX_ANSWER_BYTES)
        if not piece:
            return text
        text += piece
    return None


def _died(attempt: Attempt, status: int) -> Tried:
    if not os.WIFSIGNALED(status):
        return untried("the attempt's process said nothing")
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name
    if number in _REFUSING_SIGNALS:
        return refused(f"tried to {attempt.what}", f"the process was ended by {name}")
    return untried(f"the attempt's process died of {name}")


def _threaded(attempt: Attempt, world: World) -> Tried:
    """Run an attempt in a thread, because it needs this process: the session, its JVM."""
    answers: list[Tried] = []
    thread = threading.Thread(target=lambda: answers.append(_answer(attempt, world)), daemon=True)
    thread.start()
    thread.join(attempt.seconds)
    return answers[0] if answers else untried(f"it did not end within {attempt.seconds:g} s")
