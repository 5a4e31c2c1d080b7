"""The reference page of the REST API, generated from its OpenAPI description."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from sluice.core import SluiceError
from sluice.runtime.rest import EVERYWHERE, TYPE_PREFIX, describe, status_of
from sluice.runtime.rest_server import ROUTES

_INTRODUCTION = """\
# REST

Every route that the gateway lets through, as `GET /v1/openapi.json` describes it. [The REST API](rest-api.md)
explains how to use it. The [policy](../howto/access.md#write-a-policy) decides by operation who may do what.
The gateway itself answers 401 without a valid credential, 403 when the policy denies the operation, 429 when a
rate limit is exceeded, and 503 while the auth service is unavailable. Every route may also fail with one of
these problems:
"""
_ANCHOR = re.compile(r"[^a-z0-9_ -]")


def rest_reference() -> str:
    """The page, in Markdown."""
    described = describe(ROUTES, "")
    routes = [
        (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    lines = [_INTRODUCTION]
    lines += [f"- {status_of(each)}: `{TYPE_PREFIX}{each.__name__}`: {_first_line(each)}" for each in EVERYWHERE]
    lines += ["", "| | | Operation | |", "|---|---|---|---|"]
    lines += [
        f"| {method} | [`{path}`](#{_anchor(method, path)}) | `{each['x-sluice-operation']}` | {each['summary']} |"
        for method, path, each in routes
    ]
    for method, path, operation in routes:
        lines += ["", f"## {method} {path}", "", *_route(operation)]
    lines += ["", "## Types", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += [f"### {name}", "", *_type(schema)]
    return "\n".join(lines).replace("``", "`").rstrip() + "\n"


def _anchor(method: str, path: str) -> str:
    """The anchor of a heading, as on GitHub."""
    return _ANCHOR.sub("", f"{method} {path}".lower()).replace(" ", "-")


def _route(operation: Mapping[str, Any]) -> Iterator[str]:
    yield operation["summary"]
    said = operation["description"].rpartition("Operation `")[0].strip()
    if said:
        yield from ("", said)
    yield from ("", f"Operation `{operation['x-sluice-operation']}`.")
    if operation["parameters"]:
        yield from ("", "| Parameter | In | Type | |", "|---|---|---|---|")
        for each in operation["parameters"]:
            default = each["schema"].get("default")
            words = [each.get("description", ""), "" if default in {None, ""} else f"default {_value(default)}"]
            yield f"| `{each['name']}` | {each['in']} | {_kind(each['schema'])} | {'; '.join(filter(None, words))} |"
    if "requestBody" in operation:
        for media, content in operation["requestBody"]["content"].items():
            yield from ("", f"Takes `{media}`: {_kind(content['schema'])}.")
            parts = content["schema"].get("properties", {})
            required = content["schema"].get("required", ())
            for name, part in parts.items():
                yield f"\n- `{name}`{'' if name in required else ' (may be left out)'}: {_kind(part)}"
    answers, problems = [], []
    for status, answer in operation["responses"].items():
        for media, content in answer["content"].items():
            if media == "application/problem+json":
                problems += [f"{status}: {line.removeprefix('- ')}" for line in answer["description"].split("\n")]
            else:
                answers.append(f"{status} `{media}`: {_kind(content['schema'])}")
    yield from ("", "Answers " + ", or ".join(answers) + ".", "")
    everywhere = tuple(f"{TYPE_PREFIX}{each.__name__}`" for each in EVERYWHERE)
    yield from (f"- {each}" for each in problems if not each.startswith("default") and not _names(each, everywhere))


def _names(line: str, types: Iterable[str]) -> bool:
    return any(each in line for each in types)


def _first_line(error: type[SluiceError]) -> str:
    return (error.__doc__ or "").partition("\n")[0]


def _type(schema: Mapping[str, Any]) -> Iterator[str]:
    if "description" in schema:
        yield from (" ".join(schema["description"].split()), "")
    if "enum" in schema:
        yield from ("One of " + ", ".join(f"`{each}`" for each in schema["enum"]) + ".", "")
        return
    if "properties" not in schema:
        yield from (_kind(schema) + ".", "")
        return
    yield from ("| Field | Type | Default |", "|---|---|---|")
    for name, field in schema["properties"].items():
        given = "" if name in schema.get("required", ()) else _value(field.get("default"))
        yield f"| `{name}` | {_kind(field)} | {given} |"
    yield ""


def _value(value: object) -> str:
    return f"`{msgspec.json.encode(value).decode()}`"


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_kind(each) for each in schema[several])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        inside = schema.get("prefixItems") or [schema.get("items") or {}]
        return "list of " + ", ".join(map(_kind, inside))
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_kind(schema['additionalProperties'])}"
    return _plain(schema, kind)


def _plain(schema: Mapping[str, Any], kind: str) -> str:
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("contentMediaType") == "application/octet-stream":
        return "file"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    if "maxLength" in schema:
        bounds.append(f"at most {schema['maxLength']} characters")
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


if __name__ == "__main__":
    print(rest_reference(), end="")
