"""Blocking calls of the asynchronous client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from sluice.client.access import GatewayAccess
from sluice.client.background_loop import BackgroundLoop
from sluice.client.errors import ClientError
from sluice.client.rest_client import GatewayClient, gateway_client

_Value = TypeVar("_Value")


class BlockingGateway:
    """Runs calls of a :class:`GatewayClient` in a background thread and waits for them. Thread-safe."""

    def __init__(self, access: GatewayAccess) -> None:
        self._loop = BackgroundLoop()
        self._stack = AsyncExitStack()
        self._client: GatewayClient | None = self._loop.run(self._stack.enter_async_context(gateway_client(access)))

    def call(self, main: Callable[[GatewayClient], Coroutine[Any, Any, _Value]]) -> _Value:
        """The result of ``main``; raises :class:`ClientError` once closed."""
        with _closed_meanwhile():
            return self._loop.run(main(self._open()))

    def iterate(self, source: Callable[[GatewayClient], AsyncIterator[_Value]]) -> Iterator[_Value]:
        """The items of ``source``, each fetched when the caller asks for it."""
        return self._items(source(self._open()))

    def _items(self, source: AsyncIterator[_Value]) -> Iterator[_Value]:
        with _closed_meanwhile():
            yield from self._loop.iterate(source)

    def close(self) -> None:
        """Close the connections and end the thread; closing twice does nothing."""
        if self._client is not None:
            self._client = None
            self._loop.close(self._stack.aclose())

    def _open(self) -> GatewayClient:
        if self._client is None:
            raise _closed()
        return self._client


def _closed() -> ClientError:
    return ClientError("the client is closed", "make a new one")


@contextlib.contextmanager
def _closed_meanwhile() -> Iterator[None]:
    """Report the cancellation of a call as what it is: another thread has closed the client."""
    try:
        yield
    except CancelledError:
        raise _closed() from None
