"""One xDS stream: sends what a client subscribes to, and sends it again whenever it changes.

State of the world, aggregated (ADS) or for one kind of resources alone (as Envoy asks for secrets).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from grpclib.const import Status

from sluice.core.grpc import Call, CallRefused
from sluice.core.xds.messages import REQUEST, SHORT_NAMES, Message, XdsError, decode
from sluice.core.xds.resources import Resources
from sluice.core.xds.subscription import MAX_NAMES, Heard, Subscription, readable

AGGREGATED = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
ROUTE_SERVICE = "/envoy.service.route.v3.RouteDiscoveryService"
SECRET_SERVICE = "/envoy.service.secret.v3.SecretDiscoveryService"  # noqa: S105  the name of a service


class Source(Protocol):
    """The resources for one caller."""

    def check(self, kind: str, names: tuple[str, ...]) -> None:
        """Raise :class:`~sluice.core.grpc.CallRefused` when the caller may not have one of these resources."""

    def get(self, kind: str) -> Resources | None:
        """The resources of ``kind`` at present; None when there are none yet."""

    def change(self) -> Coroutine[Any, Any, object]:
        """Waits for the next change after this call, however late it is awaited."""

    def sent(self, subscription: Subscription) -> None:
        """A response was sent."""

    def heard(self, subscription: Subscription, heard: Heard) -> None:
        """The client accepted or rejected the last response."""


def decoded(data: bytes, only: str = "") -> tuple[str, Message]:
    """A request and its kind; ``only``: the kind that the method serves, empty: any.

    Raises :class:`~sluice.core.grpc.CallRefused`.
    """
    try:
        request = decode(REQUEST, data)
    except XdsError as error:
        raise CallRefused(Status.INVALID_ARGUMENT, error.what) from error
    kind = request.type_url or only
    if kind not in SHORT_NAMES or (only and kind != only):
        raise CallRefused(Status.INVALID_ARGUMENT, f"{readable(kind)[:200]!r} is not served here")
    if len(request.resource_names) > MAX_NAMES:
        raise CallRefused(Status.INVALID_ARGUMENT, f"more than {MAX_NAMES} resources")
    return kind, request


async def serve_stream(call: Call, source: Source, only: str = "") -> None:
    """Serve until the client ends the stream."""
    subscriptions: dict[str, Subscription] = {}
    changing = asyncio.ensure_future(source.change())
    reading = asyncio.ensure_future(call.receive())
    try:
        while True:
            await asyncio.wait({reading, changing}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                if (data := reading.result()) is None:
                    return
                _hear(*decoded(data, only), subscriptions, source)
                reading = asyncio.ensure_future(call.receive())
            if changing.done():
                # Before reading the source: a change while we send counts for the next round.
                changing = asyncio.ensure_future(source.change())
            await _send_due(call, subscriptions, source)
    finally:
        reading.cancel()
        changing.cancel()
        await asyncio.gather(reading, changing, return_exceptions=True)


def _hear(kind: str, request: Message, subscriptions: dict[str, Subscription], source: Source) -> None:
    source.check(kind, tuple(request.resource_names))
    subscription = subscriptions.setdefault(kind, Subscription(kind))
    heard = subscription.hear(request)
    if heard in {Heard.ACCEPTED, Heard.REJECTED}:
        source.heard(subscription, heard)


async def _send_due(call: Call, subscriptions: Mapping[str, Subscription], source: Source) -> None:
    # Clusters before what refers to them, as the protocol advises ("Eventual consistency considerations").
    for kind in SHORT_NAMES:
        subscription = subscriptions.get(kind)
        if subscription and (answer := subscription.answer(source.get(kind))) is not None:
            await call.send(answer)
            source.sent(subscription)
