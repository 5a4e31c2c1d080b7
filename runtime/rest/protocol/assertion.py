"""Authenticates the caller of REST, only from the gateway's signed assertion.

The public keys come from the file that an auth service of this home writes, or over mutual TLS from an auth service on
another machine (:mod:`sluice.runtime.rest.auth_service.assertion_keys`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sluice.core import AssertionRefused
from sluice.pki.assertions import ACCESS_TOKEN_AUDIENCE, HEADER, REST_AUDIENCE, Assertion, AssertionVerifier, KeySet
from sluice.runtime.rest.protocol.problems import NotAsserted

_LOG = logging.getLogger(__name__)

AUDIENCES = frozenset({REST_AUDIENCE, ACCESS_TOKEN_AUDIENCE})
ASSERTED = web.RequestKey("asserted", Assertion)
"""Request key of the caller, set after :func:`for_operation` has checked the granted operation."""
_VERIFIED = web.RequestKey("verified", Assertion)
"""Request key of the verified assertion, before its operation is checked."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
"""Methods that change nothing (RFC 9110 section 9.2.1). A short-lived access token suffices only for these."""


def require_assertion(keys: Callable[[bool], KeySet], *, except_path: str) -> Middleware:
    """A middleware that refuses requests without a valid assertion, except those for ``except_path``."""
    verifier = AssertionVerifier(keys, AUDIENCES)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == except_path:
            return await handler(request)
        try:
            request[_VERIFIED] = verifier.verify(
                request.headers.getall(HEADER, []),
                method=request.method,
                # The undecoded path: aiohttp has decoded `path` already.
                target=request.raw_path,
            )
        except AssertionRefused as error:
            _LOG.warning("%s %s refused: %s", request.method, request.path[:200], error)
            raise NotAsserted("this request does not come from the gateway", "send it through the gateway") from error
        return await handler(request)

    return check


def for_operation(operation: str, handler: Handler) -> Handler:
    """Wrap ``handler`` to refuse requests for which the gateway granted another operation than ``operation``.

    The gateway and this server map the request to an operation independently; both must agree.
    """

    async def check(request: web.Request) -> web.StreamResponse:
        try:
            granted = request[_VERIFIED].for_operation(operation, changes=request.method not in SAFE_METHODS)
        except AssertionRefused as error:
            _LOG.warning("%s %s refused: %s", request.method, request.path[:200], error)
            raise NotAsserted("the gateway has not granted this request", "send it through the gateway") from error
        request[ASSERTED] = granted
        return await handler(request)

    return check


def asserted(request: web.Request) -> Assertion:
    """The verified assertion of a request."""
    return request[ASSERTED]


def may_act_on(request: web.Request, owner: str) -> bool:
    """Whether the caller may apply the operation to resources of ``owner``."""
    who = asserted(request)
    return who.name == owner or who.any_owner
