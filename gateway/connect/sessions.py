"""The session of each principal, requested from REST on first use, and the channel to its server.

REST starts sessions. This module finds them, waits for them, and connects over mutual TLS that only accepts the driver
of that session. A cached session is dropped as soon as it does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from sluice.gateway.connect.wire import BoundedChannel, RawCodec, RawDetails
from sluice.gateway.errors import GatewayError
from sluice.pki import PeerPolicy, Role
from sluice.pki.assertions import Assertion
from sluice.pki.tls import TlsIdentity

_LOG = logging.getLogger(__name__)

START_SECONDS = 180.0
"""How long a call waits until its session's server listens."""
POLL_SECONDS = 0.3
REMEMBER_SECONDS = 2.0
"""How long an address is used without asking REST again."""


class SessionUnavailable(GatewayError):
    """The session of a principal is not available now."""


class SessionAddress(msgspec.Struct, frozen=True):
    """A session as REST describes it. ``port`` is 0 until its server listens."""

    job_id: str
    owner: str
    host: str
    port: int


RequestSession = Callable[[Assertion], Awaitable[SessionAddress]]
"""Requests the session of a principal from REST, which starts it. Raises :class:`SessionUnavailable`."""


@dataclass(slots=True)
class _Known:
    address: SessionAddress
    channel: BoundedChannel
    context: object
    asked_at: float


class Sessions:
    """Channels to the sessions of principals.

    Args:
        identity: identity of this process, role ``gateway``.
        request_session: see :data:`RequestSession`.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, identity: TlsIdentity, request_session: RequestSession, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._identity = identity
        self._request_session = request_session
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._asking: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._retired: list[BoundedChannel] = []

    async def channel(self, who: Assertion) -> BoundedChannel:
        """A channel to the session of ``who``. Raises :class:`SessionUnavailable` if it does not start in time."""
        lock = self._asking.setdefault(who.name, asyncio.Lock())
        async with lock:
            known = self._known.get(who.name)
            if known is None or self._clock() - known.asked_at > REMEMBER_SECONDS:
                address = await self._started(who)
                known = self._take(who.name, address)
            return self._current(known)

    def drop(self, who: Assertion) -> None:
        """Drop a session that does not answer. REST is asked before it is used again."""
        known = self._known.pop(who.name, None)
        if known is not None:
            known.channel.close()

    def close(self) -> None:
        """Close all channels."""
        for channel in [*self._retired, *(known.channel for known in self._known.values())]:
            channel.close()
        self._known.clear()

    async def _started(self, who: Assertion) -> SessionAddress:
        deadline = self._clock() + START_SECONDS
        while True:
            address = await self._request_session(who)
            if address.owner != who.name:
                raise SessionUnavailable(f"REST gave {who.name} the session of {address.owner}")
            if address.port:
                return address
            if self._clock() > deadline:
                raise SessionUnavailable(f"session {address.job_id} did not start in time", "see the logs of its job")
            await asyncio.sleep(POLL_SECONDS)

    def _take(self, principal: str, address: SessionAddress) -> _Known:
        known = self._known.get(principal)
        if known is None or known.address != address:
            if known is not None:
                known.channel.close()
            _LOG.info("%s has session %s at %s:%d", principal, address.job_id, address.host, address.port)
            known = self._known[principal] = self._dialing(address)
        known.asked_at = self._clock()
        return known

    def _dialing(self, address: SessionAddress) -> _Known:
        policy = PeerPolicy(self._identity.spiffe_id.trust_domain, {Role.DRIVER}, job_id=address.job_id)
        context = self._identity.client_context(policy, alpn=("h2",))
        channel = BoundedChannel(
            address.host, address.port, ssl=context, codec=RawCodec(), status_details_codec=RawDetails()
        )
        return _Known(address, channel, context, self._clock())

    def _current(self, known: _Known) -> BoundedChannel:
        """The channel. It is replaced if this process's certificate or trust anchors have changed."""
        fresh = self._dialing(known.address)
        if fresh.context is known.context:
            return known.channel
        self._retired.append(known.channel)  # may still have calls; closed when the process ends
        known.channel, known.context = fresh.channel, fresh.context
        return known.channel
