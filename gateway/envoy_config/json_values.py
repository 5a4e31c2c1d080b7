"""Small values of Envoy's configuration in JSON."""

from __future__ import annotations

from collections.abc import Mapping

FROM_XDS: Mapping[str, object] = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
"""From our xDS server, however long it takes."""


RETRIES = 3
BACK_OFF = "0.010s"
MAX_BACK_OFF_SECONDS = 0.05
NOT_SENT = "connect-failure,refused-stream,reset-before-request"
"""The request has reached nobody."""
NOT_ANSWERED = "connect-failure,refused-stream,reset,5xx"
"""There was no answer, or the one who was asked cannot answer now: for requests that may be done twice."""


def seconds(value: float) -> str:
    """A protobuf Duration."""
    return f"{value:.3f}s"


def typed(type_name: str, **fields: object) -> dict[str, object]:
    """The configuration of an extension, as an Any."""
    return {"@type": f"type.googleapis.com/{type_name}", **fields}


def extension(name: str, type_name: str, **fields: object) -> dict[str, object]:
    """An extension with its configuration."""
    return {"name": name, "typed_config": typed(type_name, **fields)}


def retrying(retry_on: str, *, try_seconds: float = MAX_BACK_OFF_SECONDS) -> dict[str, object]:
    """Try again at another endpoint, soon, when ``retry_on`` says so: for routes and for the questions of filters.

    Of a filter's questions the longest pause is also how long one try may take (Envoy has no setting of its own for
    it): ``try_seconds``.
    """
    previous = extension(
        "envoy.retry_host_predicates.previous_hosts",
        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
    )
    return {
        "retry_on": retry_on,
        "num_retries": RETRIES,
        "retry_back_off": {"base_interval": BACK_OFF, "max_interval": seconds(try_seconds)},
        "retry_host_predicate": [previous],
        "host_selection_retry_max_attempts": 3,
    }


def exact_header(name: str, value: str) -> dict[str, object]:
    """A route's condition: the header has this value."""
    return {"name": name, "string_match": {"exact": value}}
