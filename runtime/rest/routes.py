"""The one list of REST routes: served here, and given to the gateway, which lets nothing else through."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """One operation: method, path template (``{name}`` is one segment), and its name in the policy."""

    method: str
    path: str
    operation: str


HEALTH_PATH = "/v1/health"
"""Answered without an assertion, and never published: whether this JobManager takes work."""

ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/overview", "overview.read"),
    Route("GET", "/v1/jobs", "jobs.list"),
    Route("POST", "/v1/jobs", "jobs.submit"),
    Route("GET", "/v1/jobs/{job_id}", "jobs.read"),
    Route("PATCH", "/v1/jobs/{job_id}", "jobs.cancel"),
    Route("GET", "/v1/jobs/{job_id}/logs", "jobs.logs"),
    Route("GET", "/v1/jobs/{job_id}/connections", "jobs.connections"),
    Route("POST", "/v1/connect/session", "connect.use"),
    Route("GET", "/v1/taskmanagers", "taskmanagers.read"),
    Route("GET", "/v1/connections", "connections.read"),
)

PAGE_ROUTES: tuple[Route, ...] = (
    Route("GET", "/", "overview.read"),
    Route("GET", "/ui", "overview.read"),
    Route("GET", "/ui/jobs", "jobs.list"),
    Route("GET", "/ui/parts/jobs", "jobs.list"),
    Route("GET", "/ui/jobs/{job_id}", "jobs.read"),
    Route("GET", "/ui/jobs/{job_id}/logs", "jobs.logs"),
    Route("GET", "/ui/jobs/{job_id}/trust", "jobs.connections"),
    Route("GET", "/ui/parts/trust/{job_id}", "jobs.connections"),
    Route("GET", "/ui/parts/trust", "jobs.list"),
    Route("GET", "/ui/trust", "connections.read"),
    Route("GET", "/ui/taskmanagers", "taskmanagers.read"),
    Route("GET", "/ui/parts/taskmanagers", "taskmanagers.read"),
)
"""Pages for people, and parts of pages: each has the operation of what it shows, so that a page shows nobody more than
REST would tell them (docs/dashboard.md)."""

PUBLISHED: tuple[Route, ...] = (*ROUTES, *PAGE_ROUTES)
"""All that the gateway lets through."""


def published_routes() -> list[dict[str, str]]:
    """The routes as they are written for the gateway: ``[{"method", "path", "operation"}]``."""
    return [asdict(route) for route in PUBLISHED]
