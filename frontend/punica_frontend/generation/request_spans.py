"""The frontend's span of a request's trace, from arrival to end."""

import time
from contextvars import ContextVar

from msgspec.structs import replace

from punica_frontend.metrics.metrics import RequestMetrics
from punica_serve.process.tracing import Span, SpanSink, new_root, parent_of
from punica_serve.protocol import Request

#: The current request's `traceparent` header.
TRACEPARENT: ContextVar[str | None] = ContextVar("traceparent", default=None)


class FrontendSpans:
    """Begins and ends the spans of sampled requests."""

    def __init__(self, sink: SpanSink) -> None:
        self._sink = sink

    def begin(self, request: Request, adapter: str) -> tuple[Request, Span | None]:
        """Returns the request with its trace context, and its span; None if the client does not want it traced."""
        parent, is_sampled = parent_of(TRACEPARENT.get())
        if not is_sampled:
            return request, None
        span = Span("request", parent.child() if parent else new_root(), request.arrival_ns, parent, is_server=True)
        span.attributes = {
            "punica.request_id": request.request_id,
            "punica.adapter": adapter,
            "punica.tenant": request.tenant or "",
            "punica.prompt_tokens": len(request.prompt_ids),
        }
        return replace(request, traceparent=span.context.traceparent), span

    def end(self, span: Span, metrics: RequestMetrics) -> None:
        span.attributes |= {"punica.outcome": metrics.outcome, "punica.tokens": metrics.num_tokens}
        if (first_token_s := metrics.first_token_s) is not None:
            span.events.append(("first token", span.start_ns + int(1e9 * first_token_s)))
        if metrics.outcome not in ("stop", "length", "cancelled"):
            span.error = metrics.outcome
        self._sink.emit(span, time.time_ns())
