"""The types of one call on both ends: caller, request, answer. Nothing is sent here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sluice.pki import SpiffeId
from sluice.runtime.rpc.contract import Method
from sluice.runtime.rpc.errors import EndpointStopped
from sluice.runtime.rpc.mailbox import Message

_T = TypeVar("_T")


class RemotePeer(Protocol):
    """The other end of one stream, as endpoints use it."""

    @property
    def identity(self) -> SpiffeId:
        """The identity in the peer's certificate."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        ...

    def gateway(self, protocol: Callable[..., _T], endpoint: str, *, token: bytes | None = None) -> _T:
        """Return a proxy of ``endpoint`` at the peer."""
        ...

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the stream ends."""

    async def wait_closed(self) -> None:
        """Wait until the stream has ended."""

    async def close(self, reason: str = "no longer needed") -> None:
        """End the stream."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The other side of one call.

    Attributes:
        identity: identity in the caller's certificate; for a call within the process, its own identity.
        peer: the stream of the call, which can be used for calls back; None for a call within the process.
        local: whether the call comes from within the process; set only by
            :meth:`sluice.runtime.rpc.RpcService.local`.
    """

    identity: SpiffeId
    peer: RemotePeer | None = None
    local: bool = False


class Request(Protocol):
    """A request for a call. Its ``arguments`` are still encoded when they came over the wire.

    The envelopes ``Call`` and ``Tell`` satisfy this protocol.
    """

    @property
    def endpoint(self) -> str: ...

    @property
    def method(self) -> str: ...

    @property
    def token(self) -> bytes | None: ...

    @property
    def arguments(self) -> bytes | tuple[Any, ...]: ...


class Answer(Protocol):
    """Receives the outcome of one call. Exactly one of its methods is called, exactly once."""

    def succeed(self, result: Any) -> None:  # noqa: ANN401  # any declared type
        """The method returned ``result``."""

    def fail(self, error: BaseException) -> None:
        """The method raised an error, or was never run."""


class Callee(Protocol):
    """The endpoint that a call is for."""

    name: str

    async def serve(self, invocation: Invocation) -> None:
        """Run the call and send its answer."""

    def discarded(self, invocation: Invocation) -> None:
        """The call will not be run."""


class Invocation(Message):
    """One call of a method, waiting in a mailbox or running."""

    __slots__ = ("_endpoint", "answer", "arguments", "caller", "cancelled", "method", "task", "token")

    def __init__(
        self,
        endpoint: Callee,
        method: Method,
        arguments: tuple[Any, ...],
        *,
        token: bytes | None,
        caller: Caller,
        answer: Answer,
    ) -> None:
        self._endpoint = endpoint
        self.cancelled = False
        self.method = method
        self.arguments = arguments
        self.token = token
        self.caller = caller
        self.answer = answer
        self.task: asyncio.Future[Any] | None = None

    def cancel(self) -> None:
        """Skip the call if it has not started, or cancel its deferred part, because the caller has given up.

        A running handler is not interrupted, because that could leave a change half done. The deferred part has always
        started when it is cancelled, so that it can undo what the handler did.
        """
        self.cancelled = True
        if self.task is not None:
            self.task.get_loop().call_soon(self.task.cancel)

    async def run(self) -> None:
        if self.cancelled:
            self.discard()
        else:
            await self._endpoint.serve(self)

    def discard(self) -> None:
        self._endpoint.discarded(self)
        self.answer.fail(EndpointStopped(f"endpoint {self._endpoint.name} stopped before {self.method.name} ran"))


Deliver = Callable[[Caller, Request, Answer], Invocation]
"""Check a call and put it into the mailbox of its endpoint; raises ``RpcError``."""
