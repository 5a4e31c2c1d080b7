"""Envoy's own spans, which lie between the client's and those of the auth service and REST.

They are sent only to the collector.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sluice.core.home import Home
from sluice.core.tracing import TRACING, TracingConfig
from sluice.gateway.config import GatewayConfig
from sluice.gateway.principal import AccessRole
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import BackgroundLoop, EdgeAuthority, Gateway, foreign_authority, short_home
from tests.otlp import Collector, serving, stopped

__all__ = ["foreign_authority", "short_home"]

PARENT = "b7ad6b7169203331"
FLUSH_SECONDS = 40.0
"""Envoy sends every five seconds."""


@dataclass
class Traced:
    """A gateway, and the collector that all its parts send spans to."""

    gateway: Gateway
    collector: Collector

    async def send(self, trace: str, target: str, token: str) -> int:
        """A request within a trace of the client's; its status."""
        header = ("traceparent", f"00-{trace}-{PARENT}-01")
        return (await asyncio.to_thread(self.gateway.send, "GET", target, header, token=token)).status

    async def span(self, trace: str, name: str) -> Span:
        """The only span of this name in a trace, once it has come."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while not (found := [each for each in self.of(trace) if each.name == name]):
            assert time.monotonic() < deadline, f"no span {name!r} among {[each.name for each in self.of(trace)]}"
            await asyncio.sleep(0.05)
        (one,) = found
        return one

    def of(self, trace: str) -> list[Span]:
        """All spans of a trace."""
        return [each for each in self.collector.spans if each.trace_id.hex() == trace]


def server_context(authority: EdgeAuthority, directory: Path) -> ssl.SSLContext:
    """A server for 127.0.0.1, by a certificate of ``authority``."""
    authority.issue(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    return context


@pytest.fixture
async def traced(
    edge_authority: EdgeAuthority,
    short_home: Home,
    background: BackgroundLoop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Traced]:
    """Provide a gateway and a collector with a certificate of the edge authority.

    The environment's settings for authorities and proxies are wrong, and must be ignored.
    """
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "of-nobody.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    async with serving(server_context(edge_authority, tmp_path / "collector")) as (collector, endpoint):
        anchors = tmp_path / "anchors.pem"  # the server sends its leaf alone
        root = edge_authority.certificate_file.parents[1] / "root" / "cert.pem"
        anchors.write_bytes(edge_authority.certificate_file.read_bytes() + root.read_bytes())
        tracing = TracingConfig(endpoint=endpoint, ca_file=str(anchors))
        TRACING.start(tracing, "test/all")
        with running(edge_authority, short_home, background, tracing) as gateway:
            yield Traced(gateway, collector)
        await stopped()


@contextlib.contextmanager
def running(
    authority: EdgeAuthority, home: Home, background: BackgroundLoop, tracing: TracingConfig
) -> Iterator[Gateway]:
    """A gateway that is told of a collector."""
    gateway = Gateway(home, authority, background, GatewayConfig(port=0, authorization_timeout=5.0))
    gateway.tracing = tracing
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


def attributes(span: Span) -> dict[str, str]:
    """Return the attributes of a span."""
    return {each.key: each.value.string_value for each in span.attributes}


async def test_one_trace_contains_spans_of_client_envoy_auth_service_and_rest(traced: Traced) -> None:
    token = traced.gateway.token(AccessRole.VIEWER)
    trace = "1" * 32
    assert await traced.send(trace, "/v1/jobs?name=secret", token) == 200
    edge = await traced.span(trace, "edge jobs.list")
    assert edge.parent_span_id.hex() == PARENT
    told = attributes(edge)
    assert (told["operation"], told["path"], told["http.status_code"]) == ("jobs.list", "/v1/jobs", "200")
    decide = await traced.span(trace, "auth decide")
    above = {each.span_id: each.parent_span_id for each in traced.of(trace)}
    assert edge.span_id in {above[decide.span_id], above.get(above[decide.span_id])}, "the decision is a part of it"
    (reached,) = traced.gateway.reached()
    assert reached.values("traceparent") == [f"00-{trace}-{edge.span_id.hex()}-01"]
    assert "secret" not in str(traced.collector.spans)
    assert token not in str(traced.collector.spans)


async def test_a_request_that_envoy_decides_alone_has_a_span(traced: Traced) -> None:
    shown = access_token_of(traced.gateway, "viewer")[0]
    assert await traced.send("2" * 32, "/v1/jobs", shown) == 200
    assert await traced.send("3" * 32, "/v1/jobs", "slc_wrong") == 401
    edge = await traced.span("2" * 32, "edge jobs.list")
    (reached,) = traced.gateway.reached()
    assert reached.values("traceparent") == [f"00-{'2' * 32}-{edge.span_id.hex()}-01"]
    refused = await traced.span("3" * 32, "edge jobs.list")
    assert attributes(refused)["http.status_code"] == "401"
    assert shown not in str(traced.collector.spans)


async def test_a_collector_with_a_foreign_certificate_gets_no_span(
    edge_authority: EdgeAuthority,
    foreign_authority: EdgeAuthority,
    short_home: Home,
    background: BackgroundLoop,
    tmp_path: Path,
) -> None:
    """Requests do not wait for the collector."""
    async with serving(server_context(foreign_authority, tmp_path / "collector")) as (collector, endpoint):
        tracing = TracingConfig(endpoint=endpoint, ca_file=str(edge_authority.certificate_file))
        with running(edge_authority, short_home, background, tracing) as gateway:
            token = gateway.token(AccessRole.VIEWER)
            traced = Traced(gateway, collector)
            for number in range(6):  # as many as make Envoy send at once
                assert await traced.send(f"{number + 1:032x}", "/v1/jobs", token) == 200
            assert collector.spans == []
