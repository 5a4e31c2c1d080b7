"""The xDS server: sends the resources on the board to all streams of all Envoys, whenever they change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sluice.core.grpc import MAX_REQUEST_BYTES, Call, Caller, GrpcServer, Method
from sluice.core.xds import (
    AGGREGATED,
    ROUTE_SERVICE,
    ROUTES,
    SECRET,
    SECRET_SERVICE,
    SHORT_NAMES,
    Heard,
    Resources,
    SnapshotBoard,
    Subscription,
    serve_stream,
)
from sluice.gateway.xds.status import XdsStatus
from sluice.pki.tls import peer_of

_LOG = logging.getLogger(__name__)


def xds_server(
    board: SnapshotBoard,
    status: XdsStatus,
    admits: Callable[[Caller], bool],
    more: Mapping[str, Method] | None = None,
) -> GrpcServer:
    """A gRPC server for the resources of ``board``, open to callers that ``admits`` accepts.

    ``more`` are additional methods.
    """

    async def serve(call: Call, only: str) -> None:
        await serve_stream(call, _BoardSource(board, status, call.caller), only)

    return GrpcServer(
        {
            AGGREGATED: Method(partial(serve, only=""), MAX_REQUEST_BYTES),
            f"{SECRET_SERVICE}/StreamSecrets": Method(partial(serve, only=SECRET), MAX_REQUEST_BYTES),
            f"{ROUTE_SERVICE}/StreamRoutes": Method(partial(serve, only=ROUTES), MAX_REQUEST_BYTES),
            **(more or {}),
        },
        admits,
        lambda transport: str(peer_of(transport)),
    )


@dataclass(frozen=True, slots=True)
class _BoardSource:
    """All resources of the board, for every admitted caller. Reports the versions that Envoy accepts and rejects."""

    board: SnapshotBoard
    status: XdsStatus
    caller: Caller

    def check(self, kind: str, names: tuple[str, ...]) -> None:
        pass

    def get(self, kind: str) -> Resources | None:
        return self.board.get(kind)

    def change(self) -> Coroutine[Any, Any, object]:
        return self.board.change()

    def sent(self, subscription: Subscription) -> None:
        self.status.sent(subscription.kind, subscription.sent_version)

    def heard(self, subscription: Subscription, heard: Heard) -> None:
        kind = subscription.kind
        if heard is Heard.REJECTED:
            _LOG.error("%s rejected its %s: %s", self.caller, SHORT_NAMES[kind], subscription.rejected)
            self.status.rejected(kind, subscription.sent_version, subscription.rejected)
        else:
            self.status.accepted(kind, subscription.sent_version)
