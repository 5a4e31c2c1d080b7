"""Converts a request to a handler's arguments, and its result to a response; the route's types validate both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web
from prometheus_client import Histogram

from sluice.core import REGISTRY, TRACEPARENT_HEADER, TRACING, BodyTooLarge, checked, read_body as bounded_body
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import JSON, Annotation, BadRequest, Call, Query, Reply, Route

MAX_BODY_BYTES = 1 << 20
"""Maximum size of a JSON body."""
BODY_SECONDS = 30.0
"""How long the transfer of a JSON body may take."""

REQUESTS = Histogram(
    "sluice_rest_request_seconds", "Duration of requests, by operation.", ["operation"], registry=REGISTRY
)

RestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_QueryT = TypeVar("_QueryT", bound=Query)


def handler_of(route: Route, cluster: Cluster) -> RestHandler:
    """A function that handles requests for ``route`` on ``cluster``."""
    query_type, body_type = route.query, route.body

    async def handle(request: web.Request) -> web.StreamResponse:
        begun = time.monotonic()
        try:
            return await answer_to(request)
        finally:
            if not route.stream:
                REQUESTS.labels(route.id).observe(time.monotonic() - begun)

    async def answer_to(request: web.Request) -> web.StreamResponse:
        parent = checked(request.headers.get(TRACEPARENT_HEADER, ""))
        with TRACING.span(f"rest {route.id}", parent, operation=route.operation, path=request.path[:200]) as span:
            return await answer_in(request, span.traceparent)

    async def answer_in(request: web.Request, trace: str) -> web.StreamResponse:
        call = Call(request, dict(request.match_info), read_query(request, query_type), trace)
        if body_type is None:
            answer = await route.handler(cluster, call)
        else:
            answer = await route.handler(cluster, call, await read_body(request, body_type))
        return answer if isinstance(answer, web.StreamResponse) else _response(answer, route)

    return handle


def read_query(request: web.Request, wanted: type[_QueryT]) -> _QueryT:
    """The query parameters as a ``wanted``; raises :class:`BadRequest`."""
    given = request.query
    if len(given) != len(set(given)):
        raise BadRequest("a query parameter is given twice")
    try:
        return msgspec.convert(dict(given), wanted, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the query is not as expected: {error}") from error


async def read_body(request: web.Request, wanted: Annotation) -> object:
    """The JSON body as a ``wanted``; raises :class:`BadRequest`."""
    if request.content_type != JSON:
        raise BadRequest(f"the body is {request.content_type[:80]}, not {JSON}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await bounded_body(request.content, MAX_BODY_BYTES)
        return msgspec.json.decode(data, type=wanted)
    except BodyTooLarge as error:
        raise BadRequest(f"the body is larger than {MAX_BODY_BYTES} bytes") from error
    except TimeoutError as error:
        raise BadRequest(f"the body did not arrive within {BODY_SECONDS:g} s") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not as expected: {error}") from error


def _response(answer: object, route: Route) -> web.Response:
    reply = answer if isinstance(answer, Reply) else Reply(answer)
    return web.Response(
        body=msgspec.json.encode(reply.document),
        status=reply.status or route.status,
        headers=dict(reply.headers),
        content_type=route.media,
    )
