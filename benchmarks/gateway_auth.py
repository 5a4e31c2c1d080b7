"""The auth service of :mod:`benchmarks.gateway` in a process of its own: as it is, or over gRPC for a peer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # the package has no type information

from benchmarks.gateway_doors import CONFIG, TRUST_DOMAIN
from sluice.core import Home
from sluice.core.xds import TYPE_PREFIX, encode, message_class
from sluice.gateway import CheckRequest
from sluice.gateway.authn import Presented
from sluice.gateway.service import auth_service, run_auth


async def serve_grpc(home: Home, socket: str) -> None:
    """The same decision and the same audit log, asked by ``envoy.service.auth.v3.Authorization/Check``."""
    request_class = message_class(TYPE_PREFIX + "envoy.service.auth.v3.CheckRequest")
    response_class = message_class(TYPE_PREFIX + "envoy.service.auth.v3.CheckResponse")
    async with auth_service(home, CONFIG, TRUST_DOMAIN) as service:

        async def check(data: bytes, _: grpc.aio.ServicerContext) -> bytes:
            http = request_class.FromString(data).attributes.request.http
            asked = CheckRequest(
                method=http.method,
                target=http.path,
                presented=Presented(authorization=(http.headers["authorization"],)),
                request_id=http.headers["x-request-id"],
            )
            who = await service.authenticator.authenticate(asked.presented)
            decision = await service.decide_and_record(asked, who)
            response = response_class()
            if decision.allowed and decision.principal is not None:
                assertion = service.signer.sign(
                    decision.principal,
                    method=http.method,
                    target=http.path,
                    operation=decision.operation,
                    request_id=asked.request_id,
                )
                header = response.ok_response.headers.add()
                header.header.key, header.header.value = "x-sluice-assertion", assertion
            else:
                response.status.code = grpc.StatusCode.PERMISSION_DENIED.value[0]
            return encode(response)

        server = grpc.aio.server()
        handler = grpc.method_handlers_generic_handler(
            "envoy.service.auth.v3.Authorization", {"Check": grpc.unary_unary_rpc_method_handler(check)}
        )
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        await server.wait_for_termination()


def main(kind: str, home: str, *more: str) -> None:
    """``auth HOME`` or ``grpc HOME SOCKET``."""
    located = Home.at(Path(home))
    if kind == "grpc":
        asyncio.run(serve_grpc(located, *more))
    else:
        asyncio.run(run_auth(located, CONFIG, TRUST_DOMAIN))


if __name__ == "__main__":
    main(*sys.argv[1:])
