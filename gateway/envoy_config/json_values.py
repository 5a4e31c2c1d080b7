"""Small helpers for Envoy's configuration in JSON."""

from __future__ import annotations

from collections.abc import Mapping

FROM_XDS: Mapping[str, object] = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
"""The source for resources from our xDS server; Envoy waits for them without a timeout."""


RETRIES = 3
BACK_OFF = "0.010s"
MAX_BACK_OFF_SECONDS = 0.05
NOT_SENT = "connect-failure,refused-stream,reset-before-request"
"""Retry conditions for requests that no upstream has received."""
NOT_ANSWERED = "connect-failure,refused-stream,reset,5xx"
"""Retry conditions for idempotent requests: no response, or an upstream that is currently unable to respond."""


def seconds(value: float) -> str:
    """A protobuf Duration."""
    return f"{value:.3f}s"


def typed(type_name: str, **fields: object) -> dict[str, object]:
    """The configuration of an extension, as an ``Any``."""
    return {"@type": f"type.googleapis.com/{type_name}", **fields}


def extension(name: str, type_name: str, **fields: object) -> dict[str, object]:
    """An extension with its configuration."""
    return {"name": name, "typed_config": typed(type_name, **fields)}


def retrying(retry_on: str, *, try_seconds: float = MAX_BACK_OFF_SECONDS) -> dict[str, object]:
    """Retry with a short backoff at another endpoint on ``retry_on``, for routes and for calls of filters.

    For calls of filters, Envoy also uses the maximum backoff as the timeout of one try (there is no separate setting):
    ``try_seconds``.
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
    """A route condition: the header has exactly this value."""
    return {"name": name, "string_match": {"exact": value}}
