"""Rendering and error pages for all pages of the dashboard."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from sluice.core.pages import HTML, Pages, page_headers
from sluice.runtime.rest import Call, Cluster, Query, problem_of

_LOG = logging.getLogger(__name__)
_TEMPLATES = Pages(Path(__file__).parent / "templates")
_QueryT = TypeVar("_QueryT", bound=Query)
_Handler = Callable[[Cluster, Call[_QueryT]], Awaitable[web.Response]]


async def render(call: Call[Any], template: str, *, status: int = 200, **values: Any) -> web.Response:  # noqa: ANN401
    """Render a page for the caller, in a thread, because the page of a large cluster takes a while."""
    given = {"who": call.who.name, "here": _place(call.request.path), "now": time.time(), **values}
    text = await asyncio.to_thread(_TEMPLATES.render, template, **given)
    return web.Response(text=text, status=status, content_type=HTML, headers=page_headers())


def page(handler: _Handler[_QueryT]) -> _Handler[_QueryT]:
    """Decorate a handler so that its errors are shown as a page."""

    @functools.wraps(handler)
    async def handle(cluster: Cluster, call: Call[_QueryT]) -> web.Response:
        try:
            return await handler(cluster, call)
        except Exception as error:  # noqa: BLE001  # outermost handler of a page: every error becomes a page
            problem = problem_of(error)
            if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                _LOG.error("the page %s failed", call.request.path, exc_info=error)
            return await render(call, "problem.html", status=problem.status, title=problem.title, detail=problem.detail)

    return handle


def _place(path: str) -> str:
    """The navigation entry of a page."""
    return "/ui/jobs" if path.startswith("/ui/jobs/") else path
