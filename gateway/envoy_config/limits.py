"""How much one client may ask for: token buckets in Envoy's memory, for each address and for each principal.

The buckets of clients that were seen longest ago go when there are too many, so memory is bounded.
"""

from __future__ import annotations

from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.headers import PRINCIPAL
from sluice.gateway.envoy_config.json_values import extension

RATE_LIMIT = "rate-limit"
MAX_BUCKETS = 10_000
"""Addresses and principals that are remembered."""
BURST_SECONDS = 2.0
"""How much may come at once: what is allowed in this time."""
_FILL_SECONDS = 0.1
_UNLIMITED = 1_000_000_000


def rate_limit(config: GatewayConfig) -> list[dict[str, object]]:
    """The filter; none when nothing is limited."""
    limits: list[tuple[dict[str, object], str, float]] = [
        ({"remote_address": {}}, "remote_address", config.address_requests_per_second),
        (
            {"request_headers": {"header_name": PRINCIPAL, "descriptor_key": "principal", "skip_if_absent": True}},
            "principal",
            config.principal_requests_per_second,
        ),
    ]
    # Of several Envoys each has its share: together they let no more pass than one would, wherever it comes in.
    wanted = [(action, key, rate / (config.envoys * config.envoy_machines)) for action, key, rate in limits if rate > 0]
    if not wanted:
        return []
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return [
        extension(
            RATE_LIMIT,
            "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
            stat_prefix="edge",
            # For what matches no bucket below; there is nothing like that.
            token_bucket=_bucket(_UNLIMITED),
            always_consume_default_token_bucket=False,
            filter_enabled=always,
            filter_enforced=always,
            rate_limits=[{"actions": [action]} for action, _, _ in wanted],
            # An entry without a value: each value has a bucket of its own.
            descriptors=[{"entries": [{"key": key}], "token_bucket": _bucket(rate)} for _, key, rate in wanted],
            max_dynamic_descriptors=MAX_BUCKETS,
        )
    ]


def _bucket(rate: float) -> dict[str, object]:
    return {
        "max_tokens": max(1, int(rate * BURST_SECONDS)),
        "tokens_per_fill": max(1, int(rate * _FILL_SECONDS)),
        "fill_interval": f"{max(_FILL_SECONDS, 1 / rate):.3f}s",
    }
