"""The caller of REST, from the gateway's signed assertion and from nothing else.

The keys come from the file that an auth service of this home writes, or from the auth service of another machine over
mutual TLS (:mod:`sluice.runtime.rest.auth_service.assertion_keys`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sluice.core import AssertionRefused
from sluice.pki.assertions import HEADER, PASS_AUDIENCE, REST_AUDIENCE, Assertion, AssertionVerifier, KeySet
from sluice.runtime.rest.protocol.problems import NotAsserted

_LOG = logging.getLogger(__name__)

AUDIENCES = frozenset({REST_AUDIENCE, PASS_AUDIENCE})
ASSERTED = web.RequestKey("asserted", Assertion)
"""Key of a request's caller, once :func:`for_operation` has verified that the operation was granted."""
_VERIFIED = web.RequestKey("verified", Assertion)
"""Key of the verified assertion of a request, whatever the operation."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
"""Methods that change nothing (RFC 9110 section 9.2.1): the only ones for which a pass does."""


def require_assertion(keys: Callable[[bool], KeySet], *, except_path: str) -> Middleware:
    """A middleware that lets nothing through without an assertion, except what is asked of ``except_path``."""
    verifier = AssertionVerifier(keys, AUDIENCES)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == except_path:
            return await handler(request)
        try:
            request[_VERIFIED] = verifier.verify(
                request.headers.getall(HEADER, []),
                method=request.method,
                # As it arrived: aiohttp's own `path` is decoded already.
                target=request.raw_path,
            )
        except AssertionRefused as error:
            _LOG.warning("%s %s refused: %s", request.method, request.path[:200], error)
            raise NotAsserted("this request does not come from the gateway", "go through the gateway") from error
        return await handler(request)

    return check


def for_operation(operation: str, handler: Handler) -> Handler:
    """``handler`` for requests to which the gateway granted exactly ``operation``; others are refused.

    The door has decided which operation a request means, and so does this server: only together they let it through.
    """

    async def check(request: web.Request) -> web.StreamResponse:
        try:
            granted = request[_VERIFIED].for_operation(operation, changes=request.method not in SAFE_METHODS)
        except AssertionRefused as error:
            _LOG.warning("%s %s refused: %s", request.method, request.path[:200], error)
            raise NotAsserted("the gateway has not granted this request", "go through the gateway") from error
        request[ASSERTED] = granted
        return await handler(request)

    return check


def asserted(request: web.Request) -> Assertion:
    """The verified assertion of a request."""
    return request[ASSERTED]


def may_act_on(request: web.Request, owner: str) -> bool:
    """Whether the operation is granted for what belongs to ``owner``."""
    who = asserted(request)
    return who.name == owner or who.any_owner
