"""Calls within the process, with the same checks, mailbox and errors as remote calls, but without serialization."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from sluice.runtime.rpc.call import Caller, Deliver
from sluice.runtime.rpc.contract import Method
from sluice.runtime.rpc.dead_letters import DeadLetters
from sluice.runtime.rpc.deadlines import Deadlines, Expired
from sluice.runtime.rpc.errors import RpcError, RpcTimeout, describe, rebuild
from sluice.runtime.rpc.mailbox import refuse_to_wait_on_main_thread


@dataclass(slots=True)
class LocalRequest:
    """A request with arguments that are not encoded."""

    endpoint: str
    method: str
    token: bytes | None = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)


class _Promise:
    """The answer to a local ask. Errors are rebuilt, so that local and remote callers see the same errors."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def succeed(self, result: Any) -> None:  # noqa: ANN401  # any declared type
        if not self._future.done():
            self._future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(rebuild(describe(error)))


class _Nobody:
    """Ignores the outcome of a local tell; the endpoint has already logged a failure."""

    __slots__ = ()

    def succeed(self, result: Any) -> None:  # noqa: ANN401  # any declared type
        """Ignore the outcome."""

    def fail(self, error: BaseException) -> None:
        """Ignore the outcome."""


class LocalLink:
    """The link to the endpoints of this process. The caller's identity is that of the process."""

    def __init__(self, caller: Caller, deliver: Deliver, deadlines: Deadlines, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters
        self._caller = caller
        self._deliver = deliver
        self._deadlines = deadlines

    async def ask(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """Call and wait for the result."""
        refuse_to_wait_on_main_thread(method.name, endpoint)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        invocation = self._deliver(
            self._caller, LocalRequest(endpoint, method.name, token, arguments), _Promise(future)
        )
        timeout = method.rules.timeout
        self._deadlines.watch(future, timeout)
        try:
            return await future
        except asyncio.CancelledError:
            invocation.cancel()
            raise
        except Expired:
            invocation.cancel()
            raise RpcTimeout(f"{method.name} of {endpoint} gave no answer in {timeout} s") from None
        finally:
            self._deadlines.forget(future, timeout)

    async def tell(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> None:
        """Put the call into the mailbox. As over a stream, a refused call is a dead letter."""
        try:
            self._deliver(self._caller, LocalRequest(endpoint, method.name, token, arguments), _Nobody())
        except RpcError as error:
            self._dead_letters.add(endpoint, method.name, str(self._caller.identity), type(error).__name__)
