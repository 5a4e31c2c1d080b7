"""The list of all REST operations: served by JobManagers, described in OpenAPI, and published to the gateway.

To add an operation, add a ``Route`` to the ``ROUTES`` of a module of :mod:`sluice.runtime.rest.resources`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sluice.runtime.rest import Call, Cluster, NoQuery, Route, describe
from sluice.runtime.rest.resources import (
    batches,
    blobs,
    connect,
    events,
    history,
    jobs,
    leader,
    logs,
    metrics,
    overview,
    queues,
    receipts,
    recovery,
    savepoints,
    secrets,
    shuffle,
    stages,
    taskmanagers,
    ui,
    uploads,
)
from sluice.runtime.ui import PAGES

HEALTH_PATH = "/v1/health"
"""Tells whether this JobManager accepts work. Needs no assertion and is never published to the gateway."""
HEALTH = Route("GET", HEALTH_PATH, "", overview.get_health)


async def get_description(cluster: Cluster, call: Call[NoQuery]) -> dict[str, Any]:  # noqa: ARG001
    """Get the OpenAPI 3.1 description of this API."""
    return _description(cluster.facts.sluice_version)


ROUTES: tuple[Route, ...] = (
    *overview.ROUTES,
    *jobs.ROUTES,
    *history.ROUTES,
    *blobs.ROUTES,
    *uploads.ROUTES,
    *stages.ROUTES,
    *logs.ROUTES,
    *events.ROUTES,
    *leader.ROUTES,
    *ui.ROUTES,
    *metrics.ROUTES,
    *recovery.ROUTES,
    *receipts.ROUTES,
    *savepoints.ROUTES,
    *secrets.ROUTES,
    *taskmanagers.ROUTES,
    *queues.ROUTES,
    *shuffle.ROUTES,
    *connect.ROUTES,
    *batches.ROUTES,
    Route("GET", "/v1/openapi.json", "openapi.read", get_description),
)

PUBLISHED: tuple[Route, ...] = (*ROUTES, *PAGES)
"""All routes that the gateway forwards: the API and the pages of the dashboard."""


@cache
def _description(version: str) -> dict[str, Any]:
    return describe(ROUTES, version)


def published_routes() -> list[dict[str, Any]]:
    """The description of the routes for the gateway: ``[{"method", "path", "operation"}]``."""
    return [route.published() for route in PUBLISHED]
