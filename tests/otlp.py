"""An OpenTelemetry trace collector in the test process, and tracing of the process into it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sluice.core.tracing import TRACING, TracingConfig


@dataclass
class Collector:
    """Receives OTLP over HTTP and keeps the spans."""

    spans: list[Span] = field(default_factory=list)

    async def take(self, request: web.BaseRequest) -> web.Response:
        """Receive one export request."""
        assert request.headers.get("content-encoding", "") in {"", "gzip"}  # aiohttp has inflated it
        received = ExportTraceServiceRequest.FromString(await request.read())
        for resource in received.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return web.Response(content_type="application/x-protobuf")


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Collector, str]]:
    """Run a collector within the block, over HTTPS if ``context`` is given; yields it and its endpoint."""
    collector = Collector()
    runner = web.ServerRunner(web.Server(collector.take))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    host, port = runner.addresses[0][:2]
    try:
        yield collector, f"{'http' if context is None else 'https'}://{host}:{port}/v1/traces"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Run a collector that receives the traces of this process within the block."""
    async with serving() as (collector, endpoint):
        TRACING.start(TracingConfig(endpoint=endpoint), "test/all")
        try:
            yield collector
        finally:
            await stopped()


async def stopped() -> None:
    """Stop tracing, and send everything that was recorded."""
    await asyncio.to_thread(TRACING.stop)
