"""The egress rules of one driver or executor: the policy decides, and the relay of the TaskManager connects.

The policy is checked twice. The JobManager is asked first, so that a program gets a refusal when it connects. Then the
gateway checks each connection with the certificate of the driver or executor; its refusal is final, whatever was
decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from sluice.core import ANY_PORT, EgressDecision, SluiceError
from sluice.runtime.egress_relay import EgressRelay, RelayRoute
from sluice.runtime.job_network.egress_rules import WouldRefuse
from sluice.runtime.job_network.relay_rules import RelayRules
from sluice.runtime.sandbox.network import Answer, Connect, Decision, HostAddress, Refuse

_LOG = logging.getLogger(__name__)

AskPolicy = Callable[[str, int], Awaitable[EgressDecision]]
"""Asks whether the job may connect to a name or address and a port, or :data:`ANY_PORT` of it."""
ALLOWED_SECONDS, REFUSED_SECONDS = 5.0, 1.0
"""How long the policy's decision about a name is cached."""
MAX_DECISIONS = 1024


class RelayedEgress:
    """:class:`EgressRules` that open the route through the relay when the first connection needs it.

    A name that the policy allows resolves to a sandbox-local address; the real lookup happens when the program
    connects. Other names do not exist. If everything is allowed, every name has an address.

    Args:
        relay: the relay of this process.
        identity: the directory of the driver's or executor's identity.
        ask: asks the policy; None if only the gateway checks it.
        enforce: whether connections that the policy does not allow are refused, instead of only marked.
        limit: returns why the job may not try another connection now; empty if it may.
        limit_names: returns why the job may not look up another name now; empty if it may.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        relay: EgressRelay,
        identity: Path,
        ask: AskPolicy | None = None,
        *,
        enforce: bool = True,
        limit: Callable[[], str] = lambda: "",
        limit_names: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._relay = relay
        self._identity = identity
        self._ask = ask
        self._enforce = enforce
        self._limit = limit
        self._limit_names = limit_names
        self._clock = clock
        self._decisions: dict[str, tuple[EgressDecision, float]] = {}
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[RelayRoute] | None = None
        self._held = contextlib.AsyncExitStack()

    async def decide(self, connect: Connect) -> Decision:
        """Refuse a connection, or send it to the relay. Called in the broker's thread."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._decide(connect), self._loop))

    async def resolve(self, name: str) -> Answer:
        """A sandbox-local address if the policy allows any port of ``name``. Called in the broker's thread."""
        if self._ask is None or not self._enforce:
            return True
        decision = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._decision(name), self._loop))
        return decision.allowed if decision.decided else None

    def close(self) -> None:
        """Close the route after the end of the sandbox. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the relay with it
            asyncio.run_coroutine_threadsafe(self._close(), self._loop)

    async def _decision(self, name: str) -> EgressDecision:
        """The policy's decision about a name; cached briefly because programs look up one name many times."""
        assert self._ask is not None  # noqa: S101  for the type checker
        known, now = self._decisions.get(name), self._clock()
        if known is not None and now < known[1]:
            return known[0]
        if self._limit_names():
            return EgressDecision(decided=False)
        decision = await self._ask(name, ANY_PORT)
        if decision.decided:
            self._decisions.pop(name, None)  # keeps the oldest decision first
            self._decisions[name] = decision, now + (ALLOWED_SECONDS if decision.allowed else REFUSED_SECONDS)
            while len(self._decisions) > MAX_DECISIONS:
                del self._decisions[next(iter(self._decisions))]
        return decision

    async def _decide(self, connect: Connect) -> Decision:
        if too_many := self._limit():
            return Refuse(errno.ENOBUFS, too_many)
        objection = await self._objection(connect)
        if objection is not None and self._enforce:
            return objection
        try:
            route = await self._route()
        except (SluiceError, OSError) as error:
            _LOG.warning("the egress relay is not available: %s", error)
            return Refuse(errno.ENETUNREACH, "no_relay")
        decision = await RelayRules(route).decide(connect)
        if objection is not None and isinstance(decision, HostAddress):
            return replace(decision, note=WouldRefuse(objection.reason))
        return decision

    async def _objection(self, connect: Connect) -> Refuse | None:
        """Why the policy refuses the connection; None if it allows it."""
        if self._ask is None:
            return None
        decision = await self._ask(connect.name or str(connect.address), connect.port)
        if not decision.decided:
            return Refuse(errno.ENETUNREACH, "not_decided")
        return None if decision.allowed else Refuse(errno.ECONNREFUSED, "not_allowed")

    async def _route(self) -> RelayRoute:
        """The route of this process, opened once; after a failure the next connection tries again."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            entered = self._held.enter_async_context(self._relay.attempt(self._identity))
            self._opening = asyncio.ensure_future(entered)
        return await asyncio.shield(self._opening)

    async def _close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
            await self._held.aclose()
