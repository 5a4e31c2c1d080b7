"""The list of REST operations: complete, consistent, and described as it is served."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from jsonschema import Draft202012Validator

from sluice.runtime.rest.openapi import PARAMETERS, describe
from sluice.runtime.rest.protocol.problems import EVERYWHERE, STATUS, TYPE_PREFIX
from sluice.runtime.rest.protocol.route import Query, Route
from sluice.runtime.rest_server.routes import HEALTH, ROUTES

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
DOCUMENTATION = "".join((REFERENCE / name).read_text(encoding="utf-8") for name in ("rest-api.md", "rest-errors.md"))
DESCRIPTION: Any = describe(ROUTES, "1.2.3")
each_route = pytest.mark.parametrize("route", [pytest.param(route, id=route.id) for route in (HEALTH, *ROUTES)])


@each_route
def test_a_handler_takes_cluster_and_call_and_declares_its_query_and_return_types(route: Route) -> None:
    hints = get_type_hints(route.handler, include_extras=True)
    parameters = list(inspect.signature(route.handler).parameters)
    assert parameters in (["cluster", "call"], ["cluster", "call", "body"])
    assert {*parameters, "return"} <= set(hints)
    (query,) = get_args(hints["call"])
    assert issubclass(query, Query)
    assert route.summary.endswith(".")


@each_route
def test_every_error_that_a_route_declares_has_a_status(route: Route) -> None:
    known = tuple(error for error, _ in STATUS)
    assert all(issubclass(error, known) for error in route.errors)


def test_every_route_is_in_the_description_once() -> None:
    described = [(method.upper(), path) for path, methods in DESCRIPTION["paths"].items() for method in methods]
    assert sorted(described) == sorted((route.method, route.path) for route in ROUTES)
    ids = [operation["operationId"] for methods in DESCRIPTION["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_route_is_in_the_documentation() -> None:
    missing = [
        f"{route.method} {route.path}" for route in ROUTES if f"| {route.method} | `{route.path}" not in DOCUMENTATION
    ]
    assert not missing


def test_every_problem_is_in_the_documentation() -> None:
    assert not [error.__name__ for error, _ in STATUS if f"`{error.__name__}`" not in DOCUMENTATION]


def test_every_named_path_segment_is_described() -> None:
    used = {name for route in ROUTES for name in PARAMETERS if f"{{{name}}}" in route.path}
    assert used == set(PARAMETERS)


def test_every_schema_of_the_description_is_valid_and_every_reference_resolves() -> None:
    components = DESCRIPTION["components"]["schemas"]
    for schema in components.values():
        Draft202012Validator.check_schema(schema)
    references = set(_references(DESCRIPTION))
    assert references
    assert references <= {f"#/components/schemas/{name}" for name in components}


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return here + [found for value in node.values() for found in _references(value)]
    if isinstance(node, list):
        return [found for value in node for found in _references(value)]
    return []


def test_queries_bodies_and_problems_are_described() -> None:
    logs = DESCRIPTION["paths"]["/v1/jobs/{job_id}/logs"]["get"]
    assert [(each["name"], each["in"]) for each in logs["parameters"]] == [
        ("job_id", "path"),
        ("source", "query"),
        ("offset", "query"),
        ("limit", "query"),
    ]
    assert logs["parameters"][3]["schema"]["maximum"] == 1 << 20
    assert f"{TYPE_PREFIX}LogNotFound" in logs["responses"]["404"]["description"]
    submission = DESCRIPTION["paths"]["/v1/jobs"]["post"]
    form = submission["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["properties"]) == {"request", "pipeline", "file", "py_file", "archive"}
    assert set(submission["responses"]) >= {"202", "400", "401", "413", "503"}


def test_errors_that_any_route_may_raise_are_described_at_every_route() -> None:
    for methods in DESCRIPTION["paths"].values():
        for operation in methods.values():
            said = "".join(answer["description"] for answer in operation["responses"].values())
            assert all(f"{TYPE_PREFIX}{error.__name__}`" in said for error in EVERYWHERE)
