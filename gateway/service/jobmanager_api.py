"""The auth service's API for JobManagers on other machines: public keys, and the validity of streams' credentials."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from sluice.core import BodyTooLarge, SluiceError, read_body
from sluice.gateway.authn import IsValid, answer
from sluice.gateway.credentials import PassKeys, encode_jwks
from sluice.pki import Role
from sluice.pki.assertions import MAX_QUESTION_BYTES
from sluice.pki.tls import peer_of

JWKS_PATH = "/auth/assertion-jwks.json"
"""The keys."""
STANDING_PATH = "/auth/standing"
"""Whether the credentials of open streams are still valid."""

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def with_jobmanager_api(check: _Handler, keys: PassKeys, is_valid: IsValid) -> _Handler:
    """A handler for a mutual TLS listener: gateways get ``check``, JobManagers these two paths, others 404."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            role = peer_of(request.transport).role if request.transport is not None else None
        except SluiceError:
            role = None
        if role is Role.GATEWAY:
            return await check(request)
        if role is Role.JOBMANAGER and (request.method, request.raw_path) == ("GET", JWKS_PATH):
            return web.Response(body=encode_jwks(keys), content_type="application/json")
        if role is Role.JOBMANAGER and (request.method, request.raw_path) == ("POST", STANDING_PATH):
            return await _standing(request, is_valid)
        return web.Response(status=404)

    return handle


async def _standing(request: web.BaseRequest, is_valid: IsValid) -> web.StreamResponse:
    try:
        asked = await read_body(request.content, MAX_QUESTION_BYTES)
        return web.Response(body=answer(is_valid, asked), content_type="application/json")
    except BodyTooLarge:
        return web.Response(status=413)
    except msgspec.MsgspecError:
        return web.Response(status=400)
