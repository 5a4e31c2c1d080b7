"""Headers that a proxy carries between the client and the auth service when it asks whether a request may go on."""

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
"""Headers of the held request that Envoy must pass on with its question."""
REFUSAL_HEADERS = ("www-authenticate", "content-type", "content-security-policy", "location", "cache-control")
"""Headers of an answer that is no 200, which Envoy must pass on to the caller."""
SUCCESS_HEADERS = ("set-cookie",)
"""Headers of an answer 200 that Envoy must add to the response which the caller gets."""
