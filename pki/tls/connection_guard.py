"""Closes open connections whose peer has been revoked, idle ones included."""

from __future__ import annotations

import asyncio
import logging
import weakref

from sluice.core import PeerRefused
from sluice.pki.revocation import LOOK_SECONDS
from sluice.pki.tls.contexts import TlsIdentity, peer_of, revocation_of

_LOG = logging.getLogger(__name__)


class ConnectionGuard:
    """Checks the connections of one listener or dialer, once a second while there are any.

    Traffic of a revoked peer fails by itself (see ``pki.tls.contexts``); this ends idle connections. For use on one
    event loop.
    """

    def __init__(self, identity: TlsIdentity, *, interval: float = LOOK_SECONDS) -> None:
        self._identity = identity
        self._interval = interval
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self._seen = -1
        self._closed = False
        self.ended = 0
        """Number of connections ended so far."""

    def add(self, transport: asyncio.BaseTransport) -> None:
        """Watch over ``transport``, whose handshake is complete, until it closes."""
        if self._closed or not isinstance(transport, asyncio.Transport) or transport.is_closing():
            return
        self._transports.add(transport)
        self._end_if_revoked(transport)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def close(self) -> None:
        """Stop watching; connections stay as they are."""
        self._closed = True
        self._transports.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        # Schedule the next check first, so that an exception below does not end all checks.
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look) if self._transports else None
        version = self._identity.revoked_peers.look()
        for transport in list(self._transports):
            if transport.is_closing():
                self._transports.discard(transport)
            elif version != self._seen:
                self._end_if_revoked(transport)
        self._seen = version

    def _end_if_revoked(self, transport: asyncio.Transport) -> None:
        try:
            reason = revocation_of(transport)
            peer = str(peer_of(transport))
        except PeerRefused as error:
            reason, peer = str(error), "a peer without identity"
        if reason:
            self.ended += 1
            _LOG.warning("ended the connection with %s: %s", peer, reason)
            self._transports.discard(transport)
            transport.abort()
