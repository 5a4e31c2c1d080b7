"""The auth service of :mod:`benchmarks.gateway` in a separate process: as in the product, or over gRPC for a peer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # the package has no type information

from benchmarks.gateway_proxies import CONFIG, TRUST_DOMAIN
from sluice.core import Home
from sluice.gateway.service import GrpcAuthorization, auth_service, run_auth


async def serve_grpc(home: Home, socket: str) -> None:
    """Serve the same decisions with the same audit log over ``envoy.service.auth.v3.Authorization/Check``."""
    async with auth_service(home, CONFIG, TRUST_DOMAIN) as service:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((GrpcAuthorization(service.checks, lambda _: "").handler(),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        await server.wait_for_termination()


def main(kind: str, home: str, *more: str) -> None:
    """Run ``auth HOME`` or ``grpc HOME SOCKET``."""
    located = Home.at(Path(home))
    if kind == "grpc":
        asyncio.run(serve_grpc(located, *more))
    else:
        asyncio.run(run_auth(located, CONFIG, TRUST_DOMAIN))


if __name__ == "__main__":
    main(*sys.argv[1:])
