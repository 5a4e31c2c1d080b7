"""A request matches at most one route: hostile spellings, ambiguous route lists, granted operations."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from sluice.gateway.authz.operations import known_operations
from sluice.gateway.authz.policy_file import DEFAULT_POLICY, read_policy
from sluice.gateway.authz.routes import (
    MAX_ROUTES,
    Route,
    RouteTable,
    UnsafePath,
    split_target,
)
from sluice.gateway.errors import RouteListError
from sluice.runtime.rest_server.routes import published_routes

ROUTES = [
    Route("GET", "/", "overview.read"),
    Route("GET", "/v1/jobs", "jobs.list"),
    Route("POST", "/v1/jobs", "jobs.submit"),
    Route("GET", "/v1/jobs/{id}", "jobs.read"),
    Route("PATCH", "/v1/jobs/{id}", "jobs.cancel"),
    Route("GET", "/v1/jobs/{id}/logs", "jobs.logs"),
    Route("GET", "/v1/jobs/{id}/executors/{number}", "jobs.read"),
]
TABLE = RouteTable(ROUTES)


@pytest.mark.parametrize(
    ("method", "target", "operation"),
    [
        ("GET", "/", "overview.read"),
        ("GET", "/v1/jobs", "jobs.list"),
        ("POST", "/v1/jobs", "jobs.submit"),
        ("GET", "/v1/jobs/0af3", "jobs.read"),
        ("PATCH", "/v1/jobs/0af3?mode=cancel", "jobs.cancel"),
        ("GET", "/v1/jobs/0af3/logs?source=driver.stdout&offset=0", "jobs.logs"),
        ("GET", "/v1/jobs/0af3/executors/1", "jobs.read"),
        ("GET", "/v1/jobs/logs", "jobs.read"),
        ("get", "/v1/jobs", None),
        ("DELETE", "/v1/jobs/0af3", None),
        ("HEAD", "/v1/jobs", None),
        ("POST", "/v1/jobs/0af3", None),
        ("GET", "/v1", None),
        ("GET", "/v1/jobsx", None),
        ("GET", "/v2/jobs", None),
        ("GET", "/V1/jobs", None),
        ("GET", "/v1/jobs/0af3/logs/more", None),
        ("GET", "/v1/jobs/{id}x", UnsafePath),
        ("GET", "/v1/jobs/" + "a" * 129, None),
    ],
)
def test_a_request_matches_exactly_one_route_or_none(method: str, target: str, operation: str | type | None) -> None:
    if operation is UnsafePath:
        with pytest.raises(UnsafePath):
            split_target(target)
        return
    route = TABLE.match(method, split_target(target))
    assert (route and route.operation) == operation


@pytest.mark.parametrize(
    "target",
    [
        "",
        "v1/jobs",
        "*",
        "//v1/jobs",
        "/v1//jobs",
        "/v1/jobs/",
        "/v1/./jobs",
        "/v1/../v1/jobs",
        "/v1/jobs/..",
        "/v1/jobs/...",
        "/v1/jobs/.hidden",
        "/v1/jobs/%2e%2e",
        "/v1/jobs/%252e%252e",
        "/v1/overview/..;/jobs",
        "/v1/jobs;jsessionid=1",
        "/v1/jobs/%2fetc",
        "/v1/jobs\\..",
        "/v1/jobs/%00",
        "/v1/jobs/a\x00b",
        "/v1/jobs/a b",
        "/v1/jobs/a\tb",
        "/v1/jobs\r\nHost: x",
        "/v1/jobs/42\n",
        "/v1/jobs#x",
        "/v1/jobs/é",
        "/v1/jobs/\udcff",
        "/v1/jobs/\uff0e\uff0e",
        "http://rest/v1/jobs",
        "/v1/jobs?a=\n",
        "/v1/jobs?a= ",
        "/v1/jobs?a#b",
        '/v1/jobs?a="',
        "/v1/jobs?" + "a" * 2049,
        "/" + "a/" * 600 + "a",
    ],
)
def test_an_ambiguous_request_target_is_unsafe(target: str) -> None:
    with pytest.raises(UnsafePath):
        split_target(target)


@given(st.text(max_size=60))
def test_a_safe_path_is_in_normal_form(text: str) -> None:
    """What is accepted is its own normal form: no escapes, no empty or dot segments."""
    try:
        path = split_target("/" + text)
    except UnsafePath:
        return
    assert "%" not in path
    assert path.isascii()
    assert path == "/" or not {"", ".", ".."} & set(path[1:].split("/"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/v1/jobs", "/v1/jobs"),
        ("/v1/jobs/{id}", "/v1/jobs/{name}"),
        ("/v1/jobs/{id}", "/v1/jobs/overview"),
        ("/v1/{kind}/logs", "/v1/jobs/{id}"),
    ],
)
def test_an_ambiguous_route_list_is_refused(first: str, second: str) -> None:
    with pytest.raises(RouteListError, match="the same request"):
        RouteTable([Route("GET", first, "a"), Route("GET", second, "b")])
    RouteTable([Route("GET", first, "a"), Route("POST", second, "b")])


@pytest.mark.parametrize(
    "routes",
    [
        pytest.param([{"method": "GET", "path": "v1", "operation": "a"}], id="no slash"),
        pytest.param([{"method": "GET", "path": "/v1/", "operation": "a"}], id="empty segment"),
        pytest.param([{"method": "GET", "path": "/v1/../x", "operation": "a"}], id="dot segment"),
        pytest.param([{"method": "GET", "path": "/v1/{id}.json", "operation": "a"}], id="half a parameter"),
        pytest.param([{"method": "GET", "path": "/v1/{id:.*}", "operation": "a"}], id="pattern"),
        pytest.param([{"method": "*", "path": "/v1", "operation": "a"}], id="any method"),
        pytest.param([{"method": "get", "path": "/v1", "operation": "a"}], id="lower-case method"),
        pytest.param([{"method": "GET", "path": "/v1", "operation": ""}], id="no operation"),
        pytest.param([{"method": "GET", "path": "/v1"}], id="operation left out"),
        pytest.param([{"method": "GET", "path": "/v1", "operation": "a", "open": True}], id="unknown member"),
        pytest.param({"method": "GET"}, id="no list"),
        pytest.param(
            [{"method": "GET", "path": f"/v{n}", "operation": "a"} for n in range(MAX_ROUTES + 1)], id="too many"
        ),
    ],
)
def test_a_malformed_route_list_is_refused(routes: object) -> None:
    with pytest.raises(RouteListError):
        RouteTable.decode(json.dumps(routes).encode())


ADMINS_ALONE = {"shuffle.drain", "secrets.rotate"}
"""What no role but the one that may do everything is granted, on purpose."""


def test_every_rest_route_is_granted_by_name_to_a_role_of_the_default_policy() -> None:
    """A grant by `*` alone does not count: somebody has to have decided about each operation."""
    table = RouteTable.decode(json.dumps(published_routes()).encode())
    assert table.routes
    policy = read_policy(DEFAULT_POLICY, known_operations(table.routes))
    looked_at = frozenset[str]().union(
        *(role.allow | role.allow_own | role.deny for role in policy.roles.values() if role.allow != policy.operations)
    )
    assert {route.operation for route in table.routes} - ADMINS_ALONE <= looked_at
