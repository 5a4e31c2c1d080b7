"""Traces at the gateway: the auth service's decision is a span, and REST's spans are below it."""

from __future__ import annotations

import asyncio

from sluice.gateway.principal import AccessRole
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import Gateway
from tests.otlp import collecting, stopped

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = ("traceparent", f"00-{TRACE}-{PARENT}-01")


async def test_a_decision_is_a_span_between_the_client_and_rest(running_gateway: Gateway) -> None:
    gateway, token = running_gateway, running_gateway.token(AccessRole.VIEWER)
    gateway.reached()
    async with collecting() as collector:
        allowed = await asyncio.to_thread(gateway.send, "GET", "/v1/jobs?name=secret", TRACEPARENT, token=token)
        refused = await asyncio.to_thread(gateway.send, "GET", "/v1/jobs", TRACEPARENT, token="slc_wrong")  # noqa: S106
        await stopped()
    assert (allowed.status, refused.status) == (200, 401)
    assert "traceparent" not in allowed.headers
    mine = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    assert [(span.name, span.parent_span_id.hex()) for span in mine] == [("auth decide", PARENT)] * 2
    told = [{each.key: each.value.int_value or each.value.string_value for each in span.attributes} for span in mine]
    assert [(each["operation"], each["status"]) for each in told] == [("jobs.list", 200), ("", 401)]
    assert "secret" not in str(mine)
    assert token not in str(mine)
    (reached,) = gateway.reached()
    assert reached.values("traceparent") == [f"00-{TRACE}-{mine[0].span_id.hex()}-01"]


async def test_the_clients_traceparent_is_forwarded_without_a_span_of_the_auth_service(
    running_gateway: Gateway,
) -> None:
    """Envoy decides alone about an access token with one role. Without configuration no span is recorded."""
    gateway = running_gateway
    gateway.reached()
    for credential in (access_token_of(gateway, "viewer")[0], gateway.token(AccessRole.VIEWER)):
        reply = await asyncio.to_thread(gateway.send, "GET", "/v1/jobs", TRACEPARENT, token=credential)
        assert reply.status == 200
        (reached,) = gateway.reached()
        assert reached.values("traceparent") == [TRACEPARENT[1]]
