"""Rate limits: token buckets in Envoy's memory, one per client address (IPv6: its /64 network) and one per principal.

The number of buckets is bounded; the least recently used ones are evicted.
"""

from __future__ import annotations

from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config.headers import PRINCIPAL
from sluice.gateway.envoy_config.json_values import extension

RATE_LIMIT = "rate-limit"
MAX_BUCKETS = 10_000
"""Maximum number of addresses and principals with a bucket."""
BURST_SECONDS = 2.0
"""Size of a burst, as the time in which its requests would be allowed."""
_FILL_SECONDS = 0.1
_UNLIMITED = 1_000_000_000
_NETWORK = {"v4_prefix_mask_len": 32, "v6_prefix_mask_len": 64}
"""One host has all addresses of an IPv6 network; see :func:`sluice.pki.tls.network_of`."""


def rate_limit(config: GatewayConfig) -> list[dict[str, object]]:
    """The rate limit filter; empty when no limit is configured."""
    limits: list[tuple[dict[str, object], str, float]] = [
        ({"masked_remote_address": _NETWORK}, "masked_remote_address", config.address_requests_per_second),
        (
            {"request_headers": {"header_name": PRINCIPAL, "descriptor_key": "principal", "skip_if_absent": True}},
            "principal",
            config.principal_requests_per_second,
        ),
    ]
    # Each of several Envoys gets an equal share, so that together they allow no more than one Envoy would.
    wanted = [(action, key, rate / (config.envoys * config.envoy_machines)) for action, key, rate in limits if rate > 0]
    if not wanted:
        return []
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return [
        extension(
            RATE_LIMIT,
            "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
            stat_prefix="edge",
            # The default bucket is required, but every request matches a descriptor below.
            token_bucket=_bucket(_UNLIMITED),
            always_consume_default_token_bucket=False,
            filter_enabled=always,
            filter_enforced=always,
            rate_limits=[{"actions": [action]} for action, _, _ in wanted],
            # An entry without a value: Envoy creates a bucket for each value.
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
