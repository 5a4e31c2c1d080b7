"""Small values of Envoy's configuration in JSON."""

from __future__ import annotations

from collections.abc import Mapping

FROM_XDS: Mapping[str, object] = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
"""From our xDS server, however long it takes."""


def seconds(value: float) -> str:
    """A protobuf Duration."""
    return f"{value:.3f}s"


def typed(type_name: str, **fields: object) -> dict[str, object]:
    """The configuration of an extension, as an Any."""
    return {"@type": f"type.googleapis.com/{type_name}", **fields}


def extension(name: str, type_name: str, **fields: object) -> dict[str, object]:
    """An extension with its configuration."""
    return {"name": name, "typed_config": typed(type_name, **fields)}


def exact_header(name: str, value: str) -> dict[str, object]:
    """A route's condition: the header has this value."""
    return {"name": name, "string_match": {"exact": value}}
