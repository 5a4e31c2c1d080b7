"""Traces for OpenTelemetry, when they are configured: from a request through REST and JobMaster to the TaskManager.

The context travels as W3C Trace Context (``traceparent``) in the request and in the messages about a job, never in the
environment of a user's program. Without ``[tracing] endpoint`` nothing is recorded and nothing is imported.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from sluice.core.errors import SluiceError

MAX_TRACEPARENT_CHARACTERS = 55
TraceParent = Annotated[str, msgspec.Meta(max_length=MAX_TRACEPARENT_CHARACTERS)]

TRACEPARENT_HEADER = "traceparent"
"""As W3C Trace Context names it."""
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class TracingUnavailable(SluiceError):
    """Traces are configured and cannot be sent."""


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where traces go."""

    endpoint: str = ""
    """URL of a collector for OTLP over HTTP, as in ``https://otel.example.com:4318/v1/traces``; empty: none."""
    ca_file: str = ""
    """Authorities (PEM) that verify its HTTPS certificate; empty: the system's."""
    sampled: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of traces to record, of those that come without a sampling decision."""

    @property
    def authorities(self) -> str:
        """The file with the collector's authorities; empty: the system's."""
        return self.ca_file or ssl.get_default_verify_paths().cafile or ""


class Span:
    """An open span; ``traceparent`` is for other processes, empty when nothing is recorded."""

    def __init__(self, span: Any = None) -> None:  # noqa: ANN401  # opentelemetry may not be installed
        self._span = span
        self.traceparent = "" if span is None else _written(span)

    def note(self, **attributes: str | int) -> None:
        """Add attributes to the open span."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def end(self, error: str = "") -> None:
        """End the span; ``error`` when it failed."""
        if self._span is not None:
            if error:
                from opentelemetry.trace import Status, StatusCode

                self._span.set_status(Status(StatusCode.ERROR, error[:200]))
            self._span.end()


class Tracing:
    """The traces of this process."""

    def __init__(self) -> None:
        self._provider: Any = None
        self._tracer: Any = None

    def start(self, config: TracingConfig, process: str) -> None:
        """Record from now on, if that is configured; raises :class:`TracingUnavailable`."""
        if not config.endpoint:
            return
        if not config.endpoint.startswith(("https://", "http://127.0.0.1:", "http://[::1]:")):
            raise TracingUnavailable(
                f"tracing.endpoint is {config.endpoint[:200]!r}", "traces name principals: https:// only"
            )
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ImportError as error:
            raise TracingUnavailable("opentelemetry is not installed", "pip install 'sluice[tracing]'") from error
        session = requests.Session()
        session.trust_env = (
            False  # REQUESTS_CA_BUNDLE would take the place of ca_file, and a proxy that of the collector
        )
        exporter = OTLPSpanExporter(
            endpoint=config.endpoint, certificate_file=config.authorities or None, session=session
        )
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "sluice", "service.instance.id": process}),
            sampler=ParentBased(TraceIdRatioBased(config.sampled)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sluice")

    def stop(self) -> None:
        """Send the remaining spans, then stop recording."""
        if self._provider is not None:
            self._provider.shutdown()
        self._provider = self._tracer = None

    def begin(self, name: str, parent: str = "", **attributes: str | int) -> Span:
        """Open a span below ``parent``; an invalid traceparent begins a new trace."""
        if self._tracer is None:
            return Span()
        return Span(self._tracer.start_span(name, context=_context(parent), attributes=attributes))

    def past(
        self, name: str, parent: str, begun: float, ended: float, *, error: str = "", **attributes: str | int
    ) -> None:
        """Record a finished span between two times in epoch seconds; ``error`` when it failed."""
        if self._tracer is None:
            return
        from opentelemetry.trace import Status, StatusCode

        span = self._tracer.start_span(
            name, context=_context(parent), attributes=attributes, start_time=int(begun * 1e9)
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error[:200]))
        span.end(end_time=int(ended * 1e9))

    @contextlib.contextmanager
    def span(self, name: str, parent: str = "", **attributes: str | int) -> Iterator[Span]:
        """A span for a block; an exception that leaves the block is its error, by type name alone."""
        span = self.begin(name, parent, **attributes)
        try:
            yield span
        except BaseException as error:
            span.end(type(error).__name__)
            raise
        span.end()


TRACING = Tracing()
"""Of this process."""


def checked(traceparent: str) -> str:
    """``traceparent`` if valid, else empty."""
    return traceparent if _TRACEPARENT.fullmatch(traceparent) else ""


def _written(span: Any) -> str:  # noqa: ANN401
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _context(parent: str) -> Any:  # noqa: ANN401
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if not checked(parent):
        return Context()
    _, trace, span, flags = parent.split("-")
    known = SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(known), Context())
