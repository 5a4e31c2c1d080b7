"""The public keys of the gateway for JobManagers on other machines, on the auth service's own listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.pass_keys import PassKeys, encode_jwks
from pki.errors import SluiceError
from pki.identity import Role
from pki.tls import peer_of

JWKS_PATH = "/auth/assertion-jwks.json"
"""What a JobManager may ask for; the one thing."""

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def keys_for_jobmanagers(check: _Handler, keys: PassKeys) -> _Handler:
    """A handler for a mutual TLS listener: gateways get ``check``, JobManagers the key set, nobody anything else."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            role = peer_of(request.transport).role if request.transport is not None else None
        except SluiceError:
            role = None
        if role is Role.GATEWAY:
            return await check(request)
        if role is Role.JOBMANAGER and (request.method, request.raw_path) == ("GET", JWKS_PATH):
            return web.Response(body=encode_jwks(keys), content_type="application/json")
        return web.Response(status=404)

    return handle
