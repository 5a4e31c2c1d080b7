"""Send the outcomes of a peer's calls back over the same connection, unless the caller has given up."""

from __future__ import annotations

from typing import Any, Protocol

from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.call import Invocation
from sluice.runtime.rpc.errors import describe


class Answerer(Protocol):
    """Sends answers, and counts the calls in flight."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed for sending."""
        ...

    def answered(self, call_id: int, size: int, data: bytes | None) -> None:
        """An incoming ask is done. ``data`` is its encoded answer, or None when the caller has given up."""

    def consumed(self, size: int) -> None:
        """An incoming tell is done."""


class RemoteAnswer:
    """Sends the outcome of one incoming ask, unless the caller has given up."""

    __slots__ = ("_answerer", "_id", "_size", "invocation")

    def __init__(self, answerer: Answerer, call_id: int, size: int) -> None:
        self._answerer = answerer
        self._id = call_id
        self._size = size
        self.invocation: Invocation | None = None

    def succeed(self, result: Any) -> None:  # noqa: ANN401  # any declared type
        """Send the result."""
        invocation = self.invocation
        if invocation is None or self._answerer.closed:
            return
        try:
            data = wire.encode_envelope(wire.Reply(self._id, invocation.method.encode_result(result)))
        except Exception as error:  # noqa: BLE001  # a result that cannot be sent fails the call
            self.fail(error)
        else:
            self._answerer.answered(self._id, self._size, data)

    def fail(self, error: BaseException) -> None:
        """Send the error."""
        text = describe(error)
        failure = wire.Failure(self._id, text.error, text.what, text.remedy, text.remote_traceback)
        self._answerer.answered(self._id, self._size, wire.encode_envelope(failure))

    def abandon(self) -> None:
        """The caller has given up."""
        if self.invocation is not None:
            self.invocation.cancel()
        self._answerer.answered(self._id, self._size, None)


class TellAnswer:
    """Returns the credit of a tell to the sender when it is done. No outcome is sent."""

    __slots__ = ("_answerer", "_size")

    def __init__(self, answerer: Answerer, size: int) -> None:
        self._answerer = answerer
        self._size = size

    def succeed(self, result: Any) -> None:  # noqa: ANN401, ARG002  # a tell has no answer
        """Return the credit."""
        self._answerer.consumed(self._size)

    def fail(self, error: BaseException) -> None:  # noqa: ARG002  # logged where it was raised
        """Return the credit."""
        self._answerer.consumed(self._size)
