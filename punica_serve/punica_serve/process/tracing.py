"""Traces of requests across processes with OpenTelemetry, if an endpoint is configured.

A trace's context travels with its request as a W3C `traceparent`. A span is made when it ends, from times that the
process knows anyway, and ``SpanSink`` exports it in its own thread. Without an endpoint OpenTelemetry is not imported.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import secrets
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from punica_serve.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

log = logging.getLogger(__name__)

#: OpenTelemetry's standard variables, which configure all programs alike.
ENDPOINT_ENVS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

#: Spans that wait for the collector; further ones are dropped.
MAX_QUEUED_SPANS = 4096
EXPORT_INTERVAL_S = 1.0
EXPORT_TIMEOUT_S = 5.0
#: Time to export waiting spans when a process ends.
FLUSH_TIMEOUT_S = 2.0

#: The package of the extra `otel` that depends on all others.
_EXPORTER = "opentelemetry.exporter.otlp.proto.http"

_SAMPLED = 0x01
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

Value = str | int | float


@dataclass(frozen=True, slots=True)
class SpanContext:
    """A span's place in a trace; both ids are hexadecimal."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    def child(self) -> "SpanContext":
        return SpanContext(self.trace_id, secrets.token_hex(8))


@dataclass(slots=True)
class Span:
    """An operation with a start and an end. Times are nanoseconds since 1970."""

    name: str
    context: SpanContext
    start_ns: int
    parent: SpanContext | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    #: Names and times of events within the span.
    events: list[tuple[str, int]] = field(default_factory=list)
    is_server: bool = False
    #: The error message, if the operation failed.
    error: str | None = None


def parent_of(traceparent: str | None) -> tuple[SpanContext | None, bool]:
    """The context of a `traceparent`, and whether it is sampled. For an invalid one: no context, and sampled."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None:
        return None, True
    return SpanContext(match[1], match[2]), bool(int(match[3], 16) & _SAMPLED)


def new_root() -> SpanContext:
    return SpanContext(secrets.token_hex(16), secrets.token_hex(8))


def check_exporter(configured: str | None) -> bool:
    """Whether spans are exported. Raises ConfigError if the config asks for it and the exporter is not installed.

    If only the environment asks for it, which may be meant for other programs, a warning is enough.
    """
    endpoint = configured or next(filter(None, map(os.environ.get, ENDPOINT_ENVS)), None)
    if endpoint is None or _is_installed(_EXPORTER):
        return endpoint is not None
    missing = f"traces can't be exported to {endpoint}: the exporter is not installed; pip install 'punica-serve[otel]'"
    if configured:
        raise ConfigError(f"{missing}, or remove `tracing.otlp_endpoint`", param="tracing.otlp_endpoint")
    log.warning("%s, or unset %s; continuing without traces", missing, " and ".join(ENDPOINT_ENVS))
    return False


def span_sink(process: str, configured: str | None) -> "SpanSink | None":
    """A sink, or None if spans are not exported. Raises ConfigError like ``check_exporter``."""
    return SpanSink(process, configured) if check_exporter(configured) else None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is its parent package
        return False


@contextlib.asynccontextmanager
async def closing_spans(sink: "SpanSink | None") -> AsyncIterator[None]:
    """Exports waiting spans at the end of the body."""
    try:
        yield
    finally:
        if sink:
            await asyncio.to_thread(sink.close)


class SpanSink:
    """Exports spans over OTLP/HTTP. ``emit`` never waits. If the collector is down, only spans are lost."""

    def __init__(self, process: str, configured: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # If the collector is down, OpenTelemetry then logs each lost batch, and not each try.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._resource = Resource.create({"service.name": f"punica-{process}"})
        # The exporter itself reads the standard variables, also those for headers and certificates.
        endpoint = f"{configured.rstrip('/')}/v1/traces" if configured else None
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT_S),
            max_queue_size=MAX_QUEUED_SPANS,
            schedule_delay_millis=1000 * EXPORT_INTERVAL_S,
        )

    def emit(self, span: Span, end_ns: int) -> None:
        self._processor.on_end(self._readable(span, end_ns))

    def close(self) -> None:
        """Exports waiting spans, for at most FLUSH_TIMEOUT_S."""
        flushing = threading.Thread(target=self._processor.shutdown, name="span-flush", daemon=True)
        flushing.start()
        flushing.join(FLUSH_TIMEOUT_S)

    def _readable(self, span: Span, end_ns: int) -> "ReadableSpan":
        from opentelemetry import trace
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        def context(of: SpanContext) -> trace.SpanContext:
            flags = trace.TraceFlags(_SAMPLED)
            return trace.SpanContext(int(of.trace_id, 16), int(of.span_id, 16), is_remote=False, trace_flags=flags)

        attributes: Mapping[str, Value] = span.attributes
        return ReadableSpan(
            span.name,
            context=context(span.context),
            parent=context(span.parent) if span.parent else None,
            resource=self._resource,
            attributes=attributes,
            events=[Event(name, timestamp=at_ns) for name, at_ns in span.events],
            kind=trace.SpanKind.SERVER if span.is_server else trace.SpanKind.INTERNAL,
            status=trace.Status(trace.StatusCode.ERROR, span.error) if span.error else trace.Status(),
            start_time=span.start_ns,
            end_time=end_ns,
            instrumentation_scope=InstrumentationScope("punica_serve"),
        )
