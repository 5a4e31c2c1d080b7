"""The xDS server: every stream of every Envoy gets what the board has, whenever it changes.

State of the world, aggregated (ADS) or for one kind of resources alone (as Envoy asks for secrets).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from grpclib.const import Status

from sluice.gateway.errors import XdsError
from sluice.gateway.xds.api import (
    SECRET,
    SHORT_NAMES,
    Message,
    decode,
)
from sluice.gateway.xds.snapshot import SnapshotBoard
from sluice.gateway.xds.status import XdsStatus
from sluice.gateway.xds.subscription import (
    MAX_NAMES,
    REQUEST,
    Heard,
    Subscription,
    readable,
)
from sluice.pki.agent.grpc_server import (
    MAX_REQUEST_BYTES,
    Call,
    Caller,
    CallRefused,
    GrpcServer,
    Method,
)

_LOG = logging.getLogger(__name__)

AGGREGATED = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
SECRETS = "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets"


def xds_server(board: SnapshotBoard, status: XdsStatus, admits: Callable[[Caller], bool]) -> GrpcServer:
    """A gRPC server of what ``board`` has, for callers that ``admits`` lets in."""
    streams = _Streams(board, status)
    return GrpcServer(
        {
            AGGREGATED: Method(streams.aggregated, MAX_REQUEST_BYTES),
            SECRETS: Method(streams.secrets, MAX_REQUEST_BYTES),
        },
        admits,
    )


class _Streams:
    def __init__(self, board: SnapshotBoard, status: XdsStatus) -> None:
        self._board = board
        self._status = status

    async def aggregated(self, call: Call) -> None:
        await self._serve(call, "")

    async def secrets(self, call: Call) -> None:
        await self._serve(call, SECRET)

    async def _serve(self, call: Call, only: str) -> None:
        """Until the client ends it; ``only`` is the kind that the method is about, empty: any."""
        subscriptions: dict[str, Subscription] = {}
        changing = asyncio.ensure_future(self._board.change())
        reading = asyncio.ensure_future(call.receive())
        try:
            while True:
                await asyncio.wait({reading, changing}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    if (data := reading.result()) is None:
                        return
                    self._hear(_decoded(data), subscriptions, only, call.caller)
                    reading = asyncio.ensure_future(call.receive())
                if changing.done():
                    # Before looking at the board: what is published while we send counts for the next round.
                    changing = asyncio.ensure_future(self._board.change())
                await self._send_due(call, subscriptions)
        finally:
            reading.cancel()
            changing.cancel()
            await asyncio.gather(reading, changing, return_exceptions=True)

    async def _send_due(self, call: Call, subscriptions: Mapping[str, Subscription]) -> None:
        # Clusters before what refers to them, as the protocol advises ("Eventual consistency considerations").
        for kind in SHORT_NAMES:
            subscription = subscriptions.get(kind)
            if subscription and (answer := subscription.answer(self._board.get(kind))) is not None:
                await call.send(answer)
                self._status.sent(kind, subscription.sent_version)

    def _hear(self, request: Message, subscriptions: dict[str, Subscription], only: str, caller: Caller) -> None:
        kind = request.type_url or only
        if kind not in SHORT_NAMES or (only and kind != only):
            raise CallRefused(Status.INVALID_ARGUMENT, f"{readable(kind)[:200]!r} is not served here")
        if len(request.resource_names) > MAX_NAMES:
            raise CallRefused(Status.INVALID_ARGUMENT, f"more than {MAX_NAMES} resources")
        subscription = subscriptions.setdefault(kind, Subscription(kind))
        heard = subscription.hear(request)
        if heard is Heard.REJECTED:
            _LOG.error("%s rejected its %s: %s", caller, SHORT_NAMES[kind], subscription.rejected)
            self._status.rejected(kind, subscription.sent_version, subscription.rejected)
        elif heard is Heard.ACCEPTED:
            self._status.accepted(kind, subscription.sent_version)


def _decoded(data: bytes) -> Message:
    try:
        return decode(REQUEST, data)
    except XdsError as error:
        raise CallRefused(Status.INVALID_ARGUMENT, error.what) from error
