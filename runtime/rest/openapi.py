"""Generates the OpenAPI 3.1 description of REST from its routes and the types of their handlers. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import UnionType
from typing import Any, get_args

import msgspec

from sluice.core import SluiceError
from sluice.runtime.rest.protocol import (
    BINARY,
    CONTENT_TYPE,
    EVERYWHERE,
    FORM,
    JSON,
    TYPE_PREFIX,
    Annotation,
    Form,
    Problem,
    Query,
    Route,
    status_of,
)
from sluice.runtime.rest.resources import UI_SEGMENTS

REFERENCE = "#/components/schemas/{name}"
PARAMETERS: Mapping[str, str] = {
    "job_id": "id of a job, from the response to its submission",
    "taskmanager_id": "name of a TaskManager, as in its certificate",
    "queue": "name of a queue",
    "savepoint_id": "id of a savepoint",
    "secret": "name of a secret",
    "upload_id": "id of an upload, from the response to its announcement",
    "batch_id": "number of a batch",
    **dict.fromkeys(UI_SEGMENTS, "a segment of a path in the Spark UI"),
    "worker": "name of a ShuffleWorker",
}
"""The description of each named path segment."""
MAX_SEGMENT_CHARACTERS = 128

_FILES = (bytes, list[bytes])
_PARAMETER = re.compile(r"\{([a-z_]+)\}")


def describe(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The OpenAPI document for ``routes`` of Sluice ``version``."""
    listed = tuple(routes)
    schemas = _Schemas(listed)
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice REST",
            "version": version,
            "description": "Available only through the gateway. Times are milliseconds since the epoch, UTC.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"pass": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "pass": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "__Host-sluice-pass",
                    "description": "Requests that change something also need the header x-sluice-csrf.",
                },
            },
        },
    }


class _Schemas:
    """The schemas of all types that the routes use, each once."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        types: list[Annotation] = [Problem]
        for route in routes:
            types += [*_members(route.response), *_members(route.body)]
            if route.form is not None:
                types += [kind for kind in route.form.parts.values() if kind not in _FILES]
        unique = list({repr(each): each for each in types}.values())
        schemas, self.components = msgspec.json.schema_components(unique, ref_template=REFERENCE)
        self._of = {repr(each): schema for each, schema in zip(unique, schemas, strict=True)}

    def of(self, kind: Annotation) -> dict[str, Any]:
        """The schema of one type."""
        schemas = [self._of[repr(each)] for each in _members(kind)]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _members(kind: Annotation) -> tuple[Annotation, ...]:
    """The members of a union; msgspec cannot describe a union of structs."""
    if kind is None:
        return ()
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.id,
        "tags": [route.operation.partition(".")[0]],
        "summary": route.summary,
        "description": f"{route.details}\n\nOperation `{route.operation}` of the policy.".strip(),
        "x-sluice-operation": route.operation,
        "parameters": [*_path_parameters(route.path), *_query_parameters(route.query)],
        "responses": {**_answers(route, schemas), **_problems(route, schemas)},
    }
    if route.form is not None:
        operation["requestBody"] = {"required": True, "content": {FORM: _form(route.form, schemas)}}
    elif route.binary:
        operation["requestBody"] = {"required": True, "content": {BINARY: {"schema": {}}}}
    elif route.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas.of(route.body)}}}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_SEGMENT_CHARACTERS},
        }
        for name in _PARAMETER.findall(path)
    ]


def _query_parameters(query: type[Query]) -> list[dict[str, Any]]:
    """One parameter per field; its description is ``description`` in the field's metadata."""
    _, components = msgspec.json.schema_components([query], ref_template=REFERENCE)
    schema = components[query.__name__]
    parameters = []
    for name, of_field in schema["properties"].items():
        described = {key: value for key, value in of_field.items() if key != "description"}
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in schema.get("required", ()),
                **({"description": of_field["description"]} if "description" in of_field else {}),
                "schema": described,
            }
        )
    return parameters


def _answers(route: Route, schemas: _Schemas) -> dict[str, Any]:
    schema = {"type": "string"} if route.response is None else schemas.of(route.response)
    return {
        str(status): {"description": HTTPStatus(status).phrase, "content": {route.media: {"schema": schema}}}
        for status in (route.status, *route.other_statuses)
    }


def _problems(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """The types of problems that the route may return, by status."""
    by_status: dict[int, list[type[SluiceError]]] = {}
    for error in (*route.errors, *EVERYWHERE):
        by_status.setdefault(status_of(error), []).append(error)
    answers = {
        str(status): {
            "description": "\n".join(f"- `{TYPE_PREFIX}{each.__name__}`: {_said(each)}" for each in errors),
            "content": {CONTENT_TYPE: {"schema": schemas.of(Problem)}},
        }
        for status, errors in sorted(by_status.items())
    }
    default = {"description": "another problem", "content": {CONTENT_TYPE: {"schema": schemas.of(Problem)}}}
    return {**answers, "default": default}


def _said(error: type[SluiceError]) -> str:
    return (error.__doc__ or "").partition("\n")[0]


def _form(form: Form, schemas: _Schemas) -> dict[str, Any]:
    properties = {name: _part(kind, schemas) for name, kind in form.parts.items()}
    encoded = {name: {"contentType": JSON} for name, kind in form.parts.items() if kind not in _FILES}
    return {
        "schema": {"type": "object", "properties": properties, "required": list(form.required)},
        "encoding": encoded,
    }


def _part(kind: Annotation, schemas: _Schemas) -> dict[str, Any]:
    file: dict[str, Any] = {"type": "string", "contentMediaType": "application/octet-stream"}
    if kind is bytes:
        return file
    if kind == list[bytes]:
        return {"type": "array", "items": file}
    return schemas.of(kind)
