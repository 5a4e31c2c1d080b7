"""REST believes who asks from the gateway's signed assertion alone: no header, no socket and no certificate says it.

The keys come from the file that an auth service of this home writes, or from the auth service of another machine over
mutual TLS (:mod:`runtime.rest.assertion_keys`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from pki.assertions import HEADER, PASS_AUDIENCE, REST_AUDIENCE, Asserted, AssertionVerifier, KeySet
from pki.errors import AssertionRefused
from runtime.rest.problems import NotAsserted

_LOG = logging.getLogger(__name__)

AUDIENCES = frozenset({REST_AUDIENCE, PASS_AUDIENCE})
ASSERTED = web.RequestKey("asserted", Asserted)
"""Where a request keeps who asks."""


def require_assertion(keys: Callable[[bool], KeySet], *, except_path: str) -> Middleware:
    """A middleware that lets nothing through without an assertion, except what is asked of ``except_path``."""
    verifier = AssertionVerifier(keys, AUDIENCES)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == except_path:
            return await handler(request)
        try:
            request[ASSERTED] = verifier.verify(
                request.headers.getall(HEADER, []),
                method=request.method,
                # As it arrived: aiohttp's own `path` is decoded already.
                path=request.raw_path.partition("?")[0],
            )
        except AssertionRefused as error:
            _LOG.warning("%s %s refused: %s", request.method, request.path[:200], error)
            raise NotAsserted("this request does not come from the gateway", "go through the gateway") from error
        return await handler(request)

    return check


def asserted(request: web.Request) -> Asserted:
    """Who asks."""
    return request[ASSERTED]


def may_see(request: web.Request, owner: str) -> bool:
    """Whether who asks may see what belongs to ``owner``: the owner, and whom the policy shows all."""
    who = asserted(request)
    return who.principal == owner or who.any_owner or who.by_pass


def may_change(request: web.Request, owner: str) -> bool:
    """Whether who asks may change what belongs to ``owner``: the owner itself, and whom the policy lets change all."""
    who = asserted(request)
    return who.principal == owner or who.any_owner
