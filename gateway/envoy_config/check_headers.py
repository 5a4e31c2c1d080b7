"""Headers that a proxy passes between the client and the auth service in an authorization check."""

from __future__ import annotations

from sluice.core import TRACEPARENT_HEADER
from sluice.gateway.authn import HEADER as CERTIFICATE_HEADER
from sluice.gateway.credentials import CSRF_HEADER

CHECK_HEADERS = (
    "authorization",
    "cookie",
    "accept",
    "sec-fetch-mode",
    "x-forwarded-for",
    "x-request-id",
    TRACEPARENT_HEADER,
    CSRF_HEADER,
    CERTIFICATE_HEADER,
)
"""Request headers that Envoy must include in the check request."""
REFUSAL_HEADERS = ("www-authenticate", "content-type", "content-security-policy", "location", "cache-control")
"""Headers of a check response other than 200 that Envoy must pass to the client."""
SUCCESS_HEADERS = ("set-cookie",)
"""Headers of a check response with status 200 that Envoy must add to the response to the client."""
