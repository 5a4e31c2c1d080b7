"""The read-only Spark UI of a job: pages come from its driver or, after its end, from a reader of its event log.

Scripts and images come from this JobManager's own Spark.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from sluice.runtime.jobmanager import SparkUiView, UiNotFound, UiNotReady
from sluice.runtime.messages import UiPage, UiRequest
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_visible
from sluice.runtime.rest.protocol import Call, NoQuery, Query, Route
from sluice.runtime.rest.spark_ui import (
    API,
    HTML,
    SHOWN,
    STATIC,
    WAITING_PAGE,
    base_of,
    content_security_policy,
    driver_path,
    redirected,
    shown_body,
)
from sluice.runtime.spark.ui_files import ui_files

UI_SEGMENTS = ("page", "part", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
"""Names for path segments; paths of the Spark UI have at most this many."""
_NOT_YET = 202
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})


class UiQuery(Query, frozen=True, forbid_unknown_fields=False):
    """Any query parameters of Spark's pages."""


async def _show(cluster: Cluster, call: Call[UiQuery]) -> web.Response:
    """Get a page of the Spark UI of a job."""
    job_id = await require_visible(cluster, call)
    base = base_of(job_id)
    segments = tuple(call.path[name] for name in UI_SEGMENTS if name in call.path)
    if segments[:1] == (STATIC,):
        return await _file("/".join(segments[1:]))
    path = driver_path(segments)
    if path is None:
        raise UiNotFound("the Spark UI has no such page")
    query = call.request.rel_url.raw_query_string
    page = await cluster.dispatcher.job_ui(job_id, UiRequest(path=path, query=query, base=base))
    return _response(call, page, base)


def _response(call: Call[UiQuery], page: UiPage, base: str) -> web.Response:
    if page.status == _NOT_YET:
        if not call.path.get("page") != API:
            raise UiNotReady("the event log of the job is being read", "ask again in a few seconds")
        return web.Response(
            status=202, body=WAITING_PAGE, content_type=HTML, charset="utf-8", headers=_policy(call, base)
        )
    if page.status in _REDIRECTIONS:
        target = redirected(page, base)
        if target is None or target == call.request.rel_url.raw_path_qs:
            raise UiNotFound("this page of the Spark UI redirects to another site")
        return web.Response(status=302, headers={"location": target})
    if page.status != 200 or page.media not in SHOWN:
        raise UiNotFound(f"the Spark UI does not show this page now (status {page.status})", "is Spark up yet?")
    headers = _policy(call, base) if page.media == HTML else {}
    return web.Response(body=shown_body(page, base), content_type=page.media, charset="utf-8", headers=headers)


def _policy(call: Call[UiQuery], base: str) -> dict[str, str]:
    # The gateway accepts only its own host names, and does not pass on the port.
    return {"content-security-policy": content_security_policy(base, f"https://{call.request.host}")}


async def show_ui_state(cluster: Cluster, call: Call[NoQuery]) -> SparkUiView:
    """Get whether a job has a Spark UI. It has one while it runs and while it is in the history."""
    return await cluster.dispatcher.job_ui_state(await require_visible(cluster, call))


async def _file(name: str) -> web.Response:
    media, content = (await asyncio.to_thread(ui_files)).get(name, ("", b""))
    if not media:
        raise UiNotFound("the Spark UI has no such file")
    headers = {"cache-control": "private, max-age=3600"}
    return web.Response(body=content, content_type=media, charset="utf-8", headers=headers)


def _deep(depth: int) -> Route:
    """The route for paths of ``depth`` segments; a path parameter matches only one segment."""

    async def show(cluster: Cluster, call: Call[UiQuery]) -> web.Response:
        return await _show(cluster, call)

    show.__name__ = f"show_ui_{depth}" if depth else "show_ui"
    show.__doc__ = _show.__doc__
    path = "".join(f"/{{{name}}}" for name in UI_SEGMENTS[:depth])
    errors = (*JOB_ERRORS, UiNotFound, UiNotReady)
    return Route(
        "GET", f"/v1/jobs/{{job_id}}/ui{path}", "jobs.ui", show, other_statuses=(202,), errors=errors, media=HTML
    )


ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/spark-ui", "jobs.ui", show_ui_state, errors=JOB_ERRORS),
    *(_deep(depth) for depth in range(len(UI_SEGMENTS) + 1)),
)
