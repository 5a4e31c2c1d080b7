"""The other end of one stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.rpc.errors import RpcError
from sluice.runtime.rpc.exchange import Exchange
from sluice.runtime.rpc.proxy import make_proxy

_T = TypeVar("_T")


class StreamPeer:
    """One stream with one process; the same process over another stream is another peer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __repr__(self) -> str:
        return f"<StreamPeer {self.identity}{' closed' if self.closed else ''}>"

    @property
    def identity(self) -> SpiffeId:
        """From the peer's certificate."""
        return self._exchange.peer

    def gateway(self, protocol: Callable[..., _T], endpoint: str, *, token: bytes | None = None) -> _T:
        """A proxy of ``endpoint`` there; its calls carry the fencing ``token``.

        Asks raise what the method raised (see ``remotable``), ``RpcTimeout``, ``PeerUnreachable`` or another
        ``RpcError``. Calls over one stream are delivered in the order in which they were made.
        """
        return make_proxy(protocol, self._exchange, endpoint, token)

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._exchange.closed

    async def wait_closed(self) -> None:
        """Wait until the stream has ended."""
        await self._exchange.line.wait_closed()

    @property
    def close_reason(self) -> RpcError | None:
        """Why the stream has ended; None while it has not."""
        return self._exchange.line.end_reason

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the stream ends (soon, if it has).

        Use ``endpoint.post`` inside it, or ``endpoint.watch`` instead of it.
        """
        self._exchange.on_close(callback)

    async def close(self, reason: str = "no longer needed") -> None:
        """Send what waits and end the stream; pending asks fail with ``PeerUnreachable``."""
        await self._exchange.close(reason)
