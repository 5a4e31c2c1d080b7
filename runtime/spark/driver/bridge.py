"""The connection between the driver's JVM and its agent: one JSON object per line, over a private unix socket.

The JVM (``runtime/spark/plugin/cluster/Bridge.scala``) connects once per SparkContext. From the JVM::

    {"type": "started", …SparkRegistration}      the SparkContext is up
    {"type": "targets", …ExecutorTargets}        the number of executors that Spark wants from now on
    {"type": "kill", "executor_ids": […]}        Spark no longer needs these; sent after the targets that exclude them
    {"type": "progress", …JobProgress}           counters, at most five times a second
    {"type": "shuffle_register", "id": …, "shuffle_id": …, "partitions": …}    asks for the workers of a new shuffle
    {"type": "shuffle_locate", "id": …, "shuffle_id": …}                        asks for its current workers
    {"type": "shuffle_unregister", "shuffle_id": …}                             it is not needed any more
    {"type": "shuffle_lost", "shuffle_id": …, "workers": […]}                   these cannot be reached
    {"type": "stages", …StageTable}              its stages, at most once a second
    {"type": "streaming", …StreamingState}       streaming queries, when one started, committed a batch, or ended
    {"type": "task_failed", …TaskFailure}        a task failed because of its own error
    {"type": "streaming_stopped"}                the answer to stop_streaming
    {"type": "stopped"}                          the SparkContext stopped normally

To the JVM: ``{"type": "executor_exited", …ExecutorExit}``, ``{"type": "cancel"}``,
``{"type": "stop_streaming", "grace_ms": …}``, ``{"type": "decommission", "executor_ids": […], "reason": "…"}`` (these
must end once their blocks are migrated), and answers, each with the ``id`` of its question::

    {"type": "shuffle_registered", "id": …, "shuffle_number": …, "replicas": …, "integrity_key": "16 hex digits",
     "workers": [{"name": …, "host": …, "port": …}, …]}
    {"type": "shuffle_located", "id": …, "outputs": [{"pushed_to": …, "address": {"name": …, "host": …, "port": …}}, …]}
    {"type": "shuffle_refused", "id": …, "error": "a sentence"}                an error, for either question

``shuffle_id`` is Spark's id, ``shuffle_number`` the one of the data plane (ADR 48).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from sluice.runtime.messages import (
    ExecutorExit,
    ExecutorTargets,
    JobProgress,
    OutputLocation,
    ShuffleAllocation,
    SparkRegistration,
    StageTable,
    StreamingState,
    TaskFailure,
)
from sluice.runtime.spark.errors import BridgeProtocolError, SparkError

ShuffleAnswer = ShuffleAllocation | tuple[OutputLocation, ...]
"""The workers of a new shuffle, or the current locations of its outputs."""

MAX_LINE_BYTES = 1 << 20
"""Maximum length of a message on the bridge."""

MAX_UNREAD_BYTES = 8 << 20
"""If a JVM leaves more data than this unread, the agent closes its connection."""

MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` holds 108 bytes with the terminating zero (unix(7))."""

FENCED_EXIT_CODE = 58
"""Exit code of a driver JVM whose agent is gone."""


class KillExecutors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spark no longer needs these executors."""

    executor_ids: tuple[int, ...]


class SparkStopped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A SparkContext is gone; ``in_order``: it has announced its end."""

    in_order: bool = True


class RegisterShuffle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for workers for the new shuffle ``shuffle_id`` (Spark's id); ``id`` identifies the question."""

    id: int
    shuffle_id: int
    partitions: int


class LocateShuffle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the current workers of a registered shuffle; ``id`` identifies the question."""

    id: int
    shuffle_id: int


class UnregisterShuffle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shuffle is not needed any more."""

    shuffle_id: int


class ShuffleWorkersLost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These workers of the shuffle cannot be reached."""

    shuffle_id: int
    workers: tuple[str, ...]


class StreamingStopped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All streaming queries have ended."""


BridgeEvent = (
    SparkRegistration
    | ExecutorTargets
    | KillExecutors
    | JobProgress
    | RegisterShuffle
    | LocateShuffle
    | UnregisterShuffle
    | ShuffleWorkersLost
    | StageTable
    | StreamingState
    | TaskFailure
    | StreamingStopped
    | SparkStopped
)

_EVENTS: dict[str, type[Any]] = {
    "started": SparkRegistration,
    "targets": ExecutorTargets,
    "kill": KillExecutors,
    "progress": JobProgress,
    "shuffle_register": RegisterShuffle,
    "shuffle_locate": LocateShuffle,
    "shuffle_unregister": UnregisterShuffle,
    "shuffle_lost": ShuffleWorkersLost,
    "stages": StageTable,
    "streaming": StreamingState,
    "task_failed": TaskFailure,
    "streaming_stopped": StreamingStopped,
    "stopped": SparkStopped,
}


def decode_event(line: bytes) -> BridgeEvent:
    """Decode one line from the JVM.

    Raises:
        BridgeProtocolError: it is none of the messages above.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        kind = fields.pop("type", None)
        declared = _EVENTS.get(kind) if isinstance(kind, str) else None
        if declared is None:
            raise BridgeProtocolError(f"unknown message {kind!r} on the bridge")
        event: BridgeEvent = msgspec.convert(fields, declared)
    except msgspec.DecodeError as error:
        raise BridgeProtocolError(f"malformed message on the bridge: {error}") from error
    return event


def encode_exit(exit_report: ExecutorExit) -> bytes:
    """The line that reports the end of an executor to Spark."""
    return _line("executor_exited", msgspec.to_builtins(exit_report))


def encode_cancel() -> bytes:
    """The line that cancels all Spark jobs."""
    return _line("cancel", {})


def encode_decommission(executor_ids: tuple[int, ...], reason: str) -> bytes:
    """The line that makes Spark decommission executors."""
    return _line("decommission", {"executor_ids": executor_ids, "reason": reason})


def encode_shuffle(question: int, answer: ShuffleAnswer | str) -> bytes:
    """The line that answers the question with the id ``question``. A string is an error message."""
    match answer:
        case str():
            return _line("shuffle_refused", {"id": question, "error": answer})
        case ShuffleAllocation():
            fields = {**msgspec.to_builtins(answer), "integrity_key": answer.integrity_key.hex()}
            return _line("shuffle_registered", {"id": question, **fields})
        case outputs:
            return _line("shuffle_located", {"id": question, "outputs": msgspec.to_builtins(outputs)})


def encode_stop_streaming(grace_seconds: float) -> bytes:
    """The line that stops all streaming queries."""
    return _line("stop_streaming", {"grace_ms": int(grace_seconds * 1000)})


def _line(kind: str, fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, **fields}) + b"\n"


class Bridge:
    """The agent's end of the bridge: listens, and calls ``on_event`` for every message, in order."""

    def __init__(self, path: Path, on_event: Callable[[BridgeEvent], None]) -> None:
        if len(bytes(path)) > MAX_SOCKET_PATH_BYTES:
            raise SparkError(f"{path} is too long for a unix socket", "set TMPDIR to a shorter directory")
        self.path = path
        self._on_event = on_event
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.room: Callable[[], Awaitable[None]] | None = None
        """Awaited after each message before the next one is read, for backpressure on the JVM."""
        self.contexts = 0
        """The number of SparkContexts so far. A question of one is never answered to the next."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Start listening. The directory of the socket must be private (0700)."""
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=MAX_LINE_BYTES)
        self.path.chmod(0o600)

    @property
    def connected(self) -> bool:
        """Whether a SparkContext is up."""
        return self._writer is not None

    async def wait_idle(self) -> None:
        """Return when no SparkContext is up, and all messages of the last one were handled."""
        await self._idle.wait()

    def executor_exited(self, exit_report: ExecutorExit) -> None:
        """Tell Spark why an executor has ended. Does nothing without a SparkContext."""
        self._send(encode_exit(exit_report))

    def answer_shuffle(self, context: int, question: int, answer: ShuffleAnswer | str) -> None:
        """Answer a question of the SparkContext number ``context``. Does nothing if a later one is up."""
        if context == self.contexts:
            self._send(encode_shuffle(question, answer))

    def cancel(self) -> None:
        """Cancel all Spark jobs of the current SparkContext."""
        self._send(encode_cancel())

    def decommission_executors(self, executor_ids: tuple[int, ...], reason: str) -> None:
        """Make Spark migrate the blocks of executors and then end them."""
        self._send(encode_decommission(executor_ids, reason))

    def stop_streaming(self, grace_seconds: float) -> None:
        """Stop all streaming queries; :class:`StreamingStopped` is the answer."""
        self._send(encode_stop_streaming(grace_seconds))

    async def close(self) -> None:
        """Stop listening and drop the connection."""
        if self._server is not None:
            self._server.close()
            if self._writer is not None:
                self._writer.transport.abort()
            await self._server.wait_closed()
        self.path.unlink(missing_ok=True)

    def _send(self, line: bytes) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        self._writer.write(line)
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._writer is not None:  # one SparkContext at a time, as in Spark itself
            writer.close()
            return
        self._writer = writer
        self._idle.clear()
        self.contexts += 1
        in_order = False
        try:
            while not in_order:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    break
                event = decode_event(line)
                if isinstance(event, SparkStopped):
                    in_order = True
                else:
                    self._on_event(event)
                    if self.room is not None:
                        await self.room()
        except (BridgeProtocolError, ValueError, OSError):
            in_order = False  # ValueError: a line is too long
        finally:
            self._writer = None
            self._on_event(SparkStopped(in_order))
            self._idle.set()
            with contextlib.suppress(OSError):
                writer.close()
